"""Files like nanoGPT's: a checkpoint of its train.py, and the meta.pkl of a character dataset."""

import pickle

import torch


def write_nanogpt(folder, characters=None, *, bias=True, is_compiled=False, vocab_size=50304):
    """Write ckpt.pt, and meta.pkl for characters; return the weights under nanoGPT's names.

    Names and entries are the same as in nanoGPT's model.py and train.py, at a tiny size with wide random weights.
    """
    if characters is not None:
        vocab_size = len(characters)
        itos = dict(enumerate(characters))
        stoi = {character: i for i, character in itos.items()}
        meta = {"vocab_size": vocab_size, "itos": itos, "stoi": stoi}
        (folder / "meta.pkl").write_bytes(pickle.dumps(meta))

    width, n_layers, context = 24, 2, 13
    shapes = {"wte.weight": (vocab_size, width), "wpe.weight": (context, width)}
    for i in range(n_layers):
        shapes |= {
            f"h.{i}.ln_1.weight": (width,),
            f"h.{i}.attn.c_attn.weight": (3 * width, width),
            f"h.{i}.attn.c_proj.weight": (width, width),
            f"h.{i}.ln_2.weight": (width,),
            f"h.{i}.mlp.c_fc.weight": (4 * width, width),
            f"h.{i}.mlp.c_proj.weight": (width, 4 * width),
        }
    shapes["ln_f.weight"] = (width,)
    torch.manual_seed(0)
    model = {}
    for name, shape in shapes.items():
        model[f"transformer.{name}"] = 0.3 * torch.randn(shape)
        if bias and name.startswith(("h.", "ln_f")):
            model[f"transformer.{name.replace('.weight', '.bias')}"] = 0.3 * torch.randn(shape[0])
    model["lm_head.weight"] = model["transformer.wte.weight"]

    arguments = {
        "n_layer": n_layers,
        "n_head": 6,
        "n_embd": width,
        "block_size": context,
        "bias": bias,
        "vocab_size": vocab_size,
        "dropout": 0.0,
    }
    prefix = "_orig_mod." if is_compiled else ""
    checkpoint = {
        "model": {f"{prefix}{name}": weight for name, weight in model.items()},
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
        "model_args": arguments,
        "iter_num": 250,
        "best_val_loss": torch.tensor(1.47),
        "config": {"device": "cuda"},
    }
    torch.save(checkpoint, folder / "ckpt.pt")
    return model
