"""Ranks leave a run together, and no rank waits forever for another one."""

import threading

from torch.distributed import HashStore

from gptmini.system.world import World
from gptmini.training.devices import process_group, ranks
from gptmini.training.devices.ranks import Ranks


def test_a_rank_leaves_without_a_first_rank_that_does_not_come(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(process_group, "open_store", lambda world, seconds: store)
    monkeypatch.setattr(ranks, "ANSWER", 0.3)

    def leave():
        with Ranks(World(launcher="torchrun", rank=1, local_rank=1, size=2, devices=2)):
            pass

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(timeout=20)
    assert not leaving.is_alive()
    assert store.check(["here/1", "done/1"])
