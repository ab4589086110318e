"""Model files: Hugging Face folders, safetensors files, LoRA adapters in the format of
PEFT, and the names and layouts of tensors by model family.
"""
