"""Text to token ids and back: the protocol, a character tokenizer, and Hugging Face tokenizers
with their chat templates.
"""
