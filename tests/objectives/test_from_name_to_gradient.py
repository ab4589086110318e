"""The part that docs/from-name-to-gradient.md defines works."""

import re
from pathlib import Path

from grre_jax import objectives

PAGE = Path(__file__).parents[2] / "docs" / "from-name-to-gradient.md"


def test_the_part_that_the_page_defines_works(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "my_mask.py").write_text(code)
    objective = objectives.algorithm(
        "reinforce", mask=f"{tmp_path / 'my_mask.py'}:log_band", log_width=0.3
    )
    assert objective.requires == {"old_logprobs"}
    assert objective.hyperparameters == {"log_width": 0.3}
    assert "log_width" in PAGE.read_text().split("```sh")[1]
