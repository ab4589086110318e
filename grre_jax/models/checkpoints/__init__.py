"""Model files: Hugging Face folders, safetensors files, LoRA adapters in the format of
PEFT, and the names and layouts of tensors by model family.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
