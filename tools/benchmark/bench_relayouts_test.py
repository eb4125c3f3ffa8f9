# SPDX-License-Identifier: Apache-2.0
"""Commands, table and goals of tools/bench_relayouts, and a Python without the peers."""

import pathlib
import tempfile
import unittest

import bench_relayouts
from bench_cells import KIB, MIB, Cell, Entry


def cell(size, clients, **seconds):
    """A cell with one round, in which each group took the given seconds."""
    entries = [Entry(f"{group}:jit", group, "", rounds=[s]) for group, s in seconds.items()]
    for entry in entries:
        if entry.group in bench_relayouts.OURS:
            entry.column = entry.group
    return Cell("relayout", "swap_axes", size, clients, entries)


class RelayoutsTest(unittest.TestCase):
    def test_all_contestants_of_a_cell_get_the_same_relayout(self):
        phases = bench_relayouts.make_phases("swap_axes 1 KiB")
        (one,) = [each for phase in phases for each in phase.cells]
        command = (
            "relayout rows=16 cols=16 element=4 mesh=x:2,y:2 devices=0,1,2,3 to_devices=0,1,2,3 "
            "from_layout=[x,y] to_layout=[y,x]"
        )
        self.assertEqual({entry.command.split(" way=")[0] for entry in one.entries}, {command})
        self.assertEqual(
            [entry.column for entry in one.entries],
            ["tessera_devices", "tessera", "jax:device_put", "jax:jit", "tensorflow:eager"]
            + ["tensorflow:function", "torch:redistribute"],
        )

    def test_only_a_large_tensor_is_measured_with_tuned_malloc(self):
        (phase,) = bench_relayouts.make_phases("partial_to_rows.*P=2")
        tuned = [[e.column for e in c.entries if "tuned" in e.group] for c in phase.cells]
        large = ["jax_tuned:jit", "jax_tuned:shard_map", "torch_tuned:redistribute"]
        self.assertEqual(tuned, [large, []])

    def test_the_fastest_peer_counts(self):
        text = bench_relayouts.format_table(
            [cell(64 * MIB, 4, tessera_devices=1e-3, tessera=2e-3, jax=8e-3, jax_tuned=3e-3)]
        )
        row = "| swap_axes | 4 | 1.00 ms | 2.00 ms | 8.00 ms jit | 3.00 ms jit | 3 | 1.5 | 8 |"
        self.assertEqual(text.splitlines()[2], row)

    def test_a_goal_names_the_relayouts_that_miss_it(self):
        cells = [
            cell(64 * MIB, 2, tessera=1e-3, jax=3e-3, jax_tuned=2.5e-3),
            cell(64 * MIB, 4, tessera=2e-3, jax=6e-3, jax_tuned=3e-3),
            cell(KIB, 4, tessera=1e-6, jax=1e-6),
        ]
        goal = bench_relayouts.make_goal(cells, 64 * MIB, 2, "tessera")
        self.assertEqual(
            goal.verdict(None),
            "not reached  relayouts of 64 MiB, Tessera, P clients, times as fast as the fastest "
            "peer: at least 2; 1.5 (below in 1 of 2: swap_axes P=4 1.5; as installed below in 0 "
            "of 2), 1.33 times off",
        )
        goal = bench_relayouts.make_goal(cells, KIB, 50, "tessera_devices")
        self.assertTrue(goal.verdict(None).startswith("not measured"))

    def test_a_library_that_cannot_be_imported_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder) / "python"
            python.write_text("#!/bin/sh\necho \"No module named '$3'\" >&2\nexit 1\n")
            python.chmod(0o755)
            arguments = ["--python", str(python), "--build-folder", folder, "--rounds", "1"]
            options = bench_relayouts.parse_arguments(arguments)
            run = bench_relayouts.Run(options, folder, {"cores": 2, "l3_bytes": MIB})
            one = cell(KIB, 2, torch=1.0)
            one.entries[0].rounds.clear()
            run.start("torch", 2, MIB)
            run.measure(one, one.entries[0], True)
            notes = bench_relayouts.format_notes([one])
            self.assertIn("not measured: PyTorch DTensor: ", notes)
            self.assertIn("No module named 'torch'", notes)


if __name__ == "__main__":
    unittest.main()
