"""Tokenizers of the library tokenizers, as models of other programs have them."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers


def learned(text, *, special, steps=()):
    """Byte pairs learned from a text, cut by GPT-2's rule and by steps before it.

    special are the special tokens, in the order of their ids; the first stands before each text.
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
