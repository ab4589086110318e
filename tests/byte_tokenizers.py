"""Hugging Face tokenizers whose tokens are bytes."""

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def backend(merges=()):
    """The tokenizer of 256 bytes, those that `merges` joins and the MARKS."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {text: place for place, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return tokenizer


def save(folder, template=None, *, form=None, added=(), merges=(), eos_token=MARKS[-1]):
    """Writes a tokenizer: 256 bytes, those that `merges` joins, the MARKS and what is added.

    `form` is what the tokenizer itself writes around a text, such as "<|endoftext|> $A".
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokens = backend(merges)
    tokens.add_tokens(list(added))
    if form:
        ids = [(mark, tokens.token_to_id(mark)) for mark in MARKS]
        tokens.post_processor = processors.TemplateProcessing(single=form, special_tokens=ids)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=eos_token)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder
