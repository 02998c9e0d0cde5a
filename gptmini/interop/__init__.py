"""Conversion of a GPT to and from the models of other libraries: Hugging Face's GPT-2 and NanoChat."""

from gptmini.interop.hugging_face import from_hugging_face, to_hugging_face

__all__ = ["from_hugging_face", "to_hugging_face"]
