#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of bad inputs, part 5: the command lines of tools/plan and tessera_run.

A row is a name, the arguments, the exit code and the whole message. Nothing is written to stdout.
"""

import pathlib
import subprocess
import sys
import unittest

PLAN, RUN = (pathlib.Path(argument) for argument in sys.argv[1:3])

# Valid flags of a plan; the flags of a row replace those of the same name.
GATHER = {"--mesh": "{x=4}", "--from": "[x]", "--to": "[-]", "--shape": "8"}

PLAN_ROWS = [
    ("no_mesh", [], 2,
     "--mesh is missing; --help has an example"),
    ("mesh_not_closed", ["--mesh={x=4"], 2,
     '--mesh: mesh "{x=4" ends where "," or "}" should follow'),
    ("mesh_of_0", ["--mesh={x=0}"], 2,
     '--mesh: mesh {x=0} has size 0 for axis "x"; a size is 1 or more'),
    ("mesh_too_large", ["--mesh={x=2147483647}"], 2,
     "mesh {x=2147483647} has 2147483647 devices; relayouts are planned for at most "
     "16777216, use a smaller mesh"),
    ("mesh_number_too_large", ["--mesh={x=99999999999999999999}"], 2,
     '--mesh: mesh "{x=99999999999999999999}" has "99999999999999999999" at character 4, '
     "where the size of the axis should be; the number is too large for 64 bits, use a "
     "smaller one"),
    ("axis_mistyped", ["--from=[y]"], 2,
     '--from: layout "[y]" names axis "y" in dim 0; mesh {x=4} has "x"'),
    ("axis_twice", ["--from=[x, x]"], 2,
     '--from: layout "[x, x]" names axis "x" in dims 0 and 1; an axis splits one dim, '
     "once"),
    ("shape_negative", ["--shape=-8"], 2,
     "--shape: shape [-8] has size -8 in dim 0; a size is 0 or more"),
    ("shape_of_letters", ["--shape=8,b"], 2,
     '--shape: shape "8,b" has "b" at character 3, where the size of a dim, as in '
     "1024,512 should be"),
    ("shape_of_another_rank", ["--shape=8,8"], 2,
     "layout [x] has 1 dim, shape [8, 8] has 2; give one entry per dim"),
    ("shape_too_large", ["--shape=4611686018427387904"], 2,
     "shape [4611686018427387904] of f32 has more than 2^63 - 1 bytes; give it fewer "
     "elements"),
    ("to_another_rank", ["--to=[-, -]"], 2,
     "relayout to [-, -]: the layout has 2 dims, the tensor under [x] has 1; relayout "
     "keeps the rank"),
    ("dtype", ["--dtype=f31"], 2,
     '--dtype: dtype "f31" is none of "bool", "i8", "u8", "i32", "i64", "f16", "bf16", '
     '"f32", "f64"; did you mean "f32"'),
    ("memory_cap", ["--memory_cap=1"], 1,
     "relayout [x] -> [-] on {x=4}, f32 [8]: all_gather{x} needs 40 bytes on a device, "
     "the memory cap is 1 bytes; the least feasible cap is 40"),
    ("dtype_empty", ["--dtype="], 2,
     '--dtype: dtype "" is none of "bool", "i8", "u8", "i32", "i64", "f16", "bf16", "f32", '
     '"f64"'),
    ("shape_empty", ["--shape="], 2,
     "layout [x] has 1 dim, shape [] has 0; give one entry per dim"),
    ("from_empty", ["--from="], 2,
     "--from is missing; --help has an example"),
    ("reduction_order", ["--reduction_order=fast"], 2,
     '--reduction_order: order "fast" is neither "by_host", "flat"'),
    ("topology_is_a_folder", ["--topology=/tmp"], 2,
     "topology /tmp cannot be read; give a file"),
    ("topology_is_no_json", ["--topology=/etc/passwd"], 2,
     'topology /etc/passwd: is not valid JSON at character 1, at "r"; expected an object as in '
     "tools/topologies/h100.json"),
    ("topology_missing", ["--topology=/nowhere.json"], 1,
     "topology /nowhere.json cannot be opened; give a file"),
    ("svg_nowhere", ["--svg=/nowhere/plan.svg"], 1,
     "--svg: /nowhere/plan.svg cannot be written"),
    ("argument", ["more"], 2,
     '"more" is not a flag; put layouts in quotes, as in --from \'[x, -]\''),
    ("argument_of_an_escape_sequence", ["\x1b[2J"], 2,
     '"\\x1b[2J" is not a flag; put layouts in quotes, as in --from \'[x, -]\''),
]

RUN_ROWS = [
    ("nothing", [], 2,
     "--clients is 0; it should be at least 1, as in tessera_run --clients 4 ./train"),
    ("no_clients", ["--clients=0", "true"], 2,
     "--clients is 0; it should be at least 1, as in tessera_run --clients 4 ./train"),
    ("clients_minus_one", ["--clients=-1", "true"], 2,
     "--clients is -1; it should be at least 1, as in tessera_run --clients 4 ./train"),
    ("clients_abc", ["--clients=abc", "true"], 2,
     '--clients is "abc"; it should be a whole number up to 2147483647'),
    ("clients_2_and_a_half", ["--clients=2.5", "true"], 2,
     '--clients is "2.5"; it should be a whole number up to 2147483647'),
    ("clients_past_32_bits", ["--clients=100000000000", "true"], 2,
     '--clients is "100000000000"; it should be a whole number up to 2147483647'),
    ("clients_without_a_value", ["--clients"], 2,
     "--clients has no value; it should be a whole number up to 2147483647"),
    ("no_program", ["--clients=2"], 2,
     "no program is given; put it after the flags, as in tessera_run --clients 4 ./train"),
    ("program_missing", ["--clients=2", "/nowhere/program"], 127,
     'program "/nowhere/program" cannot be started: No such file or directory; give the '
     "path of a program, or a name that is on PATH"),
    ("program_empty", ["--clients=2", ""], 2,
     "no program is given; put it after the flags, as in tessera_run --clients 4 ./train"),
    ("a_folder", ["--clients=2", "/tmp"], 126,
     'program "/tmp" cannot be started: Permission denied; it should be a file that this '
     "user may execute"),
    ("no_permission", ["--clients=2", "/etc/passwd"], 126,
     'program "/etc/passwd" cannot be started: Permission denied; it should be a file '
     "that this user may execute"),
    ("timeout_without_a_unit", ["--clients=2", "--timeout=10", "true"], 2,
     '--timeout is "10"; it should be a time such as 90s, 10m or 1h30m'),
    ("timeout_of_0", ["--clients=2", "--timeout=0", "true"], 2,
     "--timeout is 0; it should be a positive time such as 90s or 10m"),
    ("timeout_of_letters", ["--clients=2", "--timeout=abc", "true"], 2,
     '--timeout is "abc"; it should be a time such as 90s, 10m or 1h30m'),
    ("timeout_negative", ["--clients=2", "--timeout=-5s", "true"], 2,
     "--timeout is -5s; it should be a positive time such as 90s or 10m"),
    ("grace_negative", ["--clients=2", "--grace=-1s", "true"], 2,
     "--grace is -1s; it should be a positive time such as 90s or 10m"),
    ("no_devices", ["--clients=2", "--devices-per-client=0", "true"], 2,
     "--devices-per-client is 0; it should be at least 1"),
    ("restarts_negative", ["--clients=2", "--max-restarts=-1", "true"], 2,
     "--max-restarts is -1; it should be at least 0"),
    ("log_dir_is_a_file", ["--clients=2", "--log-dir=/etc/passwd", "true"], 2,
     '--log-dir is "/etc/passwd", which cannot be made: Not a directory'),
    ("unknown_flag", ["--clients=2", "--foo", "true"], 2,
     'there is no flag "--foo"; see tessera_run --help, and put the flags of the program '
     "after the program"),
    ("coordinator_nonsense", ["--clients=2", "--coordinator=nonsense", "true"], 2,
     '--coordinator is "nonsense"; it should be HOST:PORT, as in host-a:4000'),
    ("coordinator_without_a_port", ["--clients=2", "--coordinator=host-a:", "true"], 2,
     '--coordinator is "host-a:"; it should be HOST:PORT, as in host-a:4000'),
    ("coordinator_without_a_host", ["--clients=2", "--coordinator=:4000", "true"], 2,
     '--coordinator is ":4000"; it should be HOST:PORT, as in host-a:4000'),
    ("coordinator_port_99999", ["--clients=2", "--coordinator=host-a:99999", "true"], 2,
     '--coordinator is "host-a:99999"; it should be HOST:PORT, as in host-a:4000'),
    ("nodes_without_a_token",
     ["--clients=2", "--nodes=2", "--node-id=0", "--coordinator=host-a:4000", "true"], 2,
     "TESSERA_TOKEN is not set; with --nodes 2 it should hold one random text, the same on "
     "every host"),
    ("flag_mistyped", ["--client=2", "true"], 2,
     'there is no flag "--client=2"; see tessera_run --help, and put the flags of the program '
     "after the program"),
    ("flag_of_an_escape_sequence", ["--\x1b[2J", "true"], 2,
     'there is no flag "--\\x1b[2J"; see tessera_run --help, and put the flags of the program '
     "after the program"),
    ("nodes_without_an_address", ["--clients=2", "--nodes=2", "--node-id=0", "true"], 2,
     "--coordinator is not given; with --nodes 2 it should be HOST:PORT of the host with "
     "--node-id 0, the same on every host"),
    ("clients_after_the_program", ["true", "--clients", "2"], 2,
     '--clients comes after the program "true" and so belongs to it; put it before, as '
     "in tessera_run --clients 4 true"),
]


def plan_arguments(arguments):
    flags = dict(GATHER)
    if not arguments:
        del flags["--mesh"]
    rest = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals:
            flags[name] = value
        else:
            rest.append(argument)
    return [f"{name}={value}" for name, value in flags.items()] + rest


class BadInputsTest(unittest.TestCase):
    def expect(self, program, arguments, code, message):
        # The deadline is a safety net: every row is refused before anything is started.
        result = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(result.stderr.strip(), message)

    def test_plan(self):
        for name, arguments, code, message in PLAN_ROWS:
            with self.subTest(name):
                self.expect(PLAN, plan_arguments(arguments), code, "plan: " + message)

    def test_tessera_run(self):
        for name, arguments, code, message in RUN_ROWS:
            with self.subTest(name):
                self.expect(RUN, arguments, code, "tessera_run: " + message)

    def test_names_are_distinct(self):
        for rows in (PLAN_ROWS, RUN_ROWS):
            self.assertEqual(len({row[0] for row in rows}), len(rows))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
