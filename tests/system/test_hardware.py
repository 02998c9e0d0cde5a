"""The automatic choices fit the machine."""

import os

import pytest
import torch

from gptmini.system import hardware
from gptmini.system.errors import UserError
from gptmini.system.hardware import choose_dtype, choose_hardware


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    # A CUDA build of torch may report bf16 support without a GPU.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


@pytest.fixture
def with_gpu(monkeypatch):
    """Pretend one CUDA GPU of the Pascal generation, without Triton and TF32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))


def test_automatic_choice_on_a_machine_without_a_gpu(monkeypatch, without_gpu):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    chosen = choose_hardware("auto", "auto", "auto")
    assert (chosen.device, chosen.precision, chosen.compile) == ("cpu", "fp32", False)
    assert "no CUDA or MPS device" in chosen.reasons["device"]
    with pytest.raises(UserError, match="use auto"):
        choose_hardware("cuda", "auto", "auto")


@pytest.mark.parametrize(
    ("is_native", "width", "expected"),
    [
        (True, 128, "fp32"),  # the default run: its figures are the same on every CPU
        (True, 384, "bf16"),
        (False, 768, "fp32"),
    ],
)
def test_wide_models_train_in_bf16_on_a_cpu_with_instructions_for_it(
    monkeypatch, without_gpu, is_native, width, expected
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_native)
    # oneDNN also accepts CPUs that emulate bf16.
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    chosen = choose_hardware("cpu", "auto", "auto", width=width)
    assert chosen.precision == expected
    assert "precision" in chosen.reasons
    for given in ("fp32", "bf16", "bf16_stream"):
        chosen = choose_hardware("cpu", given, "auto", width=width)
        assert chosen.precision == given
        assert "precision" not in chosen.reasons


@pytest.mark.parametrize(
    ("is_native", "n_weights", "expected"),
    [
        (True, 10_800_000, None),
        (True, 124_000_000, torch.bfloat16),
        (False, 124_000_000, None),
    ],
)
def test_large_models_are_sampled_in_bf16_on_a_cpu_with_instructions_for_it(
    monkeypatch, is_native, n_weights, expected
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_native)
    assert choose_dtype("auto", "cpu", n_weights) == expected
    assert choose_dtype("fp32", "cpu", n_weights) == torch.float32


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_int8_is_refused_on_a_gpu(device):
    assert choose_dtype("int8", "cpu", 1) == torch.int8
    with pytest.raises(UserError, match="bf16"):
        choose_dtype("int8", device, 1)


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp32")])
def test_automatic_choice_on_a_gpu(monkeypatch, with_gpu, bf16, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    chosen = choose_hardware("auto", "auto", "auto")
    assert (chosen.device, chosen.precision, chosen.compile) == ("cuda", expected, False)
    said = r"trainer\.devices must be at most 1, .* cuda .*, got 2"
    with pytest.raises(UserError, match=said):
        choose_hardware("auto", "auto", "auto", 2)


def test_no_number_of_threads_means_torchs_own_number_again(monkeypatch):
    used = [6]
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    hardware._default_threads.cache_clear()

    found = []
    for threads, n_processes in ((2, 1), (None, 1), (1, 1), (None, 1), (None, 3), (4, 2)):
        hardware.use_threads(threads, n_processes=n_processes)
        found.append((used[-1], os.environ.get("OMP_NUM_THREADS")))
    hardware._default_threads.cache_clear()
    # Several processes share torch's default number of threads, and set their share in the environment.
    assert found == [(2, None), (6, None), (1, None), (6, None), (2, "2"), (4, "4")]
