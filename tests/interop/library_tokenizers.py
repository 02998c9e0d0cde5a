"""Tokenizers of the tokenizers library, like those of models from other programs."""

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)


def learned(text, *, special, steps=()):
    """Return byte pairs learned from a text that is split by `steps` and then by GPT-2's pattern.

    special are the special tokens, in the order of their ids; the first is added before each text.
    """
    made = Tokenizer(models.BPE())
    by_rule = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, by_rule])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    made.train_from_iterator([text] * 9, trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    return made


def of_sentence_piece():
    """Return byte pairs like Llama 2's: spaces are replaced by U+2581, and characters without an id become bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"\u2581the", "th"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [("t", "h")], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken(piece, normalized=False) for piece in pieces[:3]])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made
