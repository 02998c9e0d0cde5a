"""The short parts of the GPU benchmark: machine, entire runs, nanoGPT, kernels and sampling."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import lightning as L
import torch
from omegaconf import OmegaConf

from gptmini.configuration.compose import quoted
from gptmini.system.hardware import choose_hardware, give_back_memory, memory, peak_flops
from gptmini.training import GPTModule

from .. import nanogpt, sampling
from ..fits import fastest
from ..harness import Table, given, output_of, train
from .fits import experiment, fit, synthetic_store
from .setting import Setting

N_KERNELS = 10  # kernels in the table
N_STEPS = 3  # profiled steps


# The machine


def measure_machine(table: Table, setting: Setting) -> None:
    """Add rows for the device, its bf16 matrix products, and its memory."""
    setting.measure("device", "name", partial(describe, setting))
    setting.measure("bf16 products, TFLOP/s", "tflops", partial(product, setting))
    setting.measure("copies in memory, GB/s", "gb_per_second", partial(copy_speed, setting))


def describe(setting: Setting) -> dict:
    """Return names, versions, and gptmini's choices for the device."""
    device = torch.device(setting.device)
    hardware = choose_hardware(setting.device, "auto", "auto")
    compiled = "compiled" if hardware.compile else "eager"
    return {
        "name": torch.cuda.get_device_name() if setting.device == "cuda" else "CPU",
        "used_as": f"{hardware.device} {hardware.precision} {compiled}",
        "memory_gb": (memory(device) or 0) / 1e9,
        "peak_tflops": (peak_flops(device, "bf16") or 0.0) / 1e12,
        "torch": torch.__version__,
    }


def product(setting: Setting) -> dict:
    """Return the speed of the fastest of ten square bf16 products of random numbers."""
    n = setting.scale.product
    a = torch.randn(n, n, device=setting.device).bfloat16()  # (n, n)
    b = torch.randn(n, n, device=setting.device).bfloat16()  # (n, n)
    seconds = fastest(setting.device, lambda: a @ b)
    return {"tflops": 2 * n**3 / seconds / 1e12}


def copy_speed(setting: Setting) -> dict:
    """Return the bytes per second that the fastest of ten copies of a large tensor reads and writes."""
    n_bytes = 16 * setting.scale.product**2  # 1 GiB on a GPU, much larger than its caches
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=setting.device)  # (n_bytes,)
    target = torch.empty_like(source)
    seconds = fastest(setting.device, lambda: target.copy_(source))
    return {"gb_per_second": 2 * n_bytes / seconds / 1e9}


# Entire runs


def measure_runs(table: Table, setting: Setting) -> None:
    """Run the commands of the default run and of experiment=shakespeare_char_short, with each choice of compile."""
    pydoc = []
    shakespeare = ["experiment=shakespeare_char_short"]
    if setting.dry:
        # Reading the text of the default run, the help of all Python modules, would take most of a short run's time.
        path = setting.shakespeare or setting.folder / "text.txt"
        if setting.shakespeare is None:
            path.write_text("".join(f"Line {i} is {i * i}.\n" for i in range(300)))
        text = ["data=text", f"data.path={quoted(str(path.resolve()))}"]
        pydoc += text
        shakespeare += text
    elif setting.shakespeare is not None:
        shakespeare.append(f"data.path={quoted(str(setting.shakespeare.resolve()))}")

    names = {"auto": "", "true": ", compiled", "false": ", not compiled"}
    if setting.dry:
        del names["true"]  # Inductor takes half a minute on a CPU
    for compile, said in names.items():
        for name, overrides in (("pydoc", pydoc), ("shakespeare_char_short", shakespeare)):
            command = partial(whole_run, setting, overrides, compile=compile)
            figures = setting.measure(f"{name}{said}: seconds", "seconds", command)
            if figures is not None:
                table.add(f"{name}{said}: validation loss", figures["val_loss"])


def whole_run(setting: Setting, overrides: Sequence[str], *, compile: str) -> dict:
    """Return the seconds of an entire command, which prepares its text, and its last validation loss."""
    data_dir = setting.folder / f"data_dir-{compile}"
    own = [
        f"data_dir={quoted(str(data_dir))}",
        "console=lines",
        f"trainer.compile={compile}",
    ]
    run = train(*overrides, *own, *setting.scale.sizes, *setting.scale.runs)
    bits = run.of("val/bits_per_byte")[-1]
    return {"seconds": run.seconds, "val_loss": run.loss, "bits_per_byte": bits}


# nanoGPT


def measure_peer(table: Table, setting: Setting) -> None:
    """Add two rows each for gptmini and nanoGPT's train.py, in turns, and the median of their ratios.

    Both train with the sizes of the gpt2 preset and the global batch of a fit, on the same tokens.
    """
    source = given(setting, "nanogpt")
    speed = "tokens_per_second"
    ratios = []
    for turn in (1, 2):
        name = f"turn {turn}: tokens a second of"
        ours = setting.measure(f"{name} gptmini", speed, partial(fit, setting, "gpt2"))
        theirs = setting.measure(
            f"{name} nanoGPT", speed, partial(train_nanogpt, setting, source, ours)
        )
        if ours and theirs:
            ratios.append(ours[speed] / theirs[speed])
    if ratios:
        table.add_median("speed of gptmini, divided by that of nanoGPT", ratios)


def train_nanogpt(setting: Setting, source: Path, ours: dict | None) -> dict:
    """Return the median speed of nanoGPT over the same steps that are measured in a fit.

    Args:
        setting: shared settings.
        source: the checkout.
        ours: figures of gptmini, which give the micro-batch; None if gptmini's fit failed.
    """
    give_back_memory(setting.device)
    scale = setting.scale
    sizes = OmegaConf.merge(experiment("gpt2"), OmegaConf.from_dotlist(list(scale.sizes))).model
    folder = setting.folder / "nanogpt"
    store = synthetic_store(setting, sizes.context_length)
    nanogpt.copy(source, folder, train=store.tokens("train"), val=store.tokens("val"))

    # nanoGPT holds more logits in memory than gptmini, so limit its micro-batch to the largest of the ladder.
    batch_size = min(ours["batch_size"] if ours else scale.sequences, scale.batch_sizes[-1])
    options = nanogpt.sizes_of(sizes) | {
        "batch_size": batch_size,
        "gradient_accumulation_steps": scale.sequences // batch_size,
        "bias": True,
        "max_iters": scale.steps,
        "eval_iters": 1,
        "eval_interval": nanogpt.NEVER,
        "log_interval": 1,
        "device": setting.device,
        "compile": not setting.dry,
        "dtype": "float32" if setting.dry else "bfloat16",
        "out_dir": str(folder / "out"),
    }
    command = nanogpt.command(options)
    output = output_of(command, cwd=folder)
    milliseconds = nanogpt.median_milliseconds(output, scale.first_step)
    return {
        "tokens_per_second": scale.sequences * sizes.context_length / milliseconds * 1000,
        "ms_a_step": milliseconds,
        "batch_size": batch_size,
    }


# Kernels


class Profile(L.Callback):
    """Profiles N_STEPS steps after compilation and warm-up."""

    def __init__(self, first_step: int) -> None:
        """Profile the steps that follow the first first_step steps."""
        # The last step before is the profiler's own warm-up.
        schedule = torch.profiler.schedule(
            wait=first_step - 1,
            warmup=1,
            active=N_STEPS,
            repeat=1,
        )
        self.profile = torch.profiler.profile(schedule=schedule)

    def on_train_start(self, *_: object) -> None:
        """Start counting steps."""
        self.profile.start()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count the step if this micro-step is its last one."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.profile.step()

    def on_train_end(self, *_: object) -> None:
        """Stop the profiler, which frees its resources on the device."""
        self.profile.stop()


def measure_kernels(table: Table, setting: Setting) -> None:
    """Profile a fit of the modern preset, and add a row for each of the slowest kernels."""
    first_step = setting.scale.first_step
    profile = Profile(first_step)
    # Train two more steps than are profiled, so that the profile does not include the end of the fit.
    n_steps = first_step + N_STEPS + 2
    profiled_fit = partial(fit, setting, "modern", callbacks=[profile], steps=n_steps)
    what = "profiled run: tokens a second"
    if setting.measure(what, "tokens_per_second", profiled_fit) is None:
        return

    spent = spent_by_kernel(profile.profile, setting.device)
    total = sum(time for time, _ in spent)
    for time_spent, event in spent[:N_KERNELS]:
        what = f"{event.key[:60]}: share of the time, in percent"
        table.add(what, 100 * time_spent / total, calls=event.count)


def spent_by_kernel(profile: torch.profiler.profile, device: str) -> list[tuple[float, object]]:
    """Return pairs of microseconds and profiler event for each kernel, the slowest first."""
    spent = []
    for event in profile.key_averages():
        if event.is_user_annotation:
            continue
        if device != "cuda":
            spent.append((event.self_cpu_time_total, event))
        # On a GPU, CPU operations also have the times of their kernels. Do not count them twice.
        elif event.device_type == torch.autograd.DeviceType.CUDA:
            spent.append((event.self_device_time_total, event))
    return sorted(spent, key=lambda pair: pair[0], reverse=True)


# Sampling


def measure_sampling(table: Table, setting: Setting) -> None:
    """Add the rows of the sampling benchmark: gptmini, Hugging Face with a static cache, and the bandwidth limit."""
    torch.compiler.reset()  # discard the compiled code of the fits
    give_back_memory(setting.device)
    checkout = None if setting.dry else setting.nanogpt
    options = argparse.Namespace(**setting.scale.sampling, nanogpt=checkout)

    def sample() -> dict:
        sampling.compare_all(setting.table, options, setting.device)
        return {"compiled": str(options.compile)}

    setting.measure("sampling is compiled", "compiled", sample)
