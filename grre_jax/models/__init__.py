"""The decoder-only transformer of all model families: configuration, forward pass, attention,
log-probabilities, low-rank terms (LoRA), and in `checkpoints` its files.
"""

from grre_jax.models.checkpoints.adapters import (
    add_adapter as add_adapter,
    save_adapter as save_adapter,
)
from grre_jax.models.checkpoints.config_json import (
    config_from_dict as config_from_dict,
    config_to_dict as config_to_dict,
)
from grre_jax.models.checkpoints.export import merged as merged, save as save
from grre_jax.models.checkpoints.huggingface import (
    fingerprint as fingerprint,
    init as init,
    load as load,
    load_config as load_config,
    parameters as parameters,
)
from grre_jax.models.config import ModelConfig as ModelConfig, RopeScaling as RopeScaling
from grre_jax.models.logprobs import (
    head_logprobs as head_logprobs,
    token_logprobs as token_logprobs,
)
from grre_jax.models.lora import LoraConfig as LoraConfig
from grre_jax.models.source import ModelSource as ModelSource
from grre_jax.models.transformer import Transformer as Transformer
