# SPDX-License-Identifier: Apache-2.0
"""The cells that tools/bench measures, and the commands that its workers get for them.

A cell is one operation of one size on one number of clients, with an entry for each contestant.
"""

import dataclasses
import math
import re
import statistics

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [8, KIB, 16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB, 256 * MIB]
QUICK_SIZES = [KIB, 4 * MIB, 64 * MIB]
KILL_SIZES = [2 * MIB, GIB]  # of the memory that each client holds when one is killed
KILL_SETS = 64
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
# Column -> its title. Ours first. A goal that says Open MPI means the fastest of OPEN_MPI.
COLUMNS = {
    "tessera": "Tessera",
    "tessera_private": "Tessera, private buffers",
    "ompi": "Open MPI",
    "ompi_tuned": "Open MPI, tuned malloc",
    "ompi_no_cma": "Open MPI, tuned malloc, no CMA",
    "scalapack": "ScaLAPACK pdgemr2d",
    "gloo": "Gloo over TCP",
}
OPEN_MPI = ("ompi", "ompi_tuned", "ompi_no_cma")
PEERS = OPEN_MPI + ("scalapack", "gloo")
MEMORY = {  # column: (processes, stores, title)
    "mc1": (1, "plain", "memcpy, one process"),
    "mc1_nt": (1, "streaming", "streaming copy, one process"),
    "mc2": (2, "plain", "memcpy, two processes, half of the time"),
    "mc2_nt": (2, "streaming", "streaming copy, two processes, half of the time"),
}


def format_size(size):
    for unit, name in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")]:
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def format_seconds(seconds):
    """Three digits and the unit that fits."""
    if seconds is None:
        return "-"
    for unit, name in [(1, "s"), (1e-3, "ms"), (1e-6, "us")]:
        if seconds >= unit:
            break
    value = seconds / unit
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {name}"


@dataclasses.dataclass(frozen=True)
class Relayout:
    """A classic relayout of a matrix over a mesh {x=2, y=P/2}: dims as tuples of axes."""

    name: str
    source: tuple
    target: tuple
    partial: bool = False
    target_order: str = ""  # of the devices: "", "reversed" or "transposed"
    trim: tuple = (0, 0)  # rows and columns that the shape lacks to be even
    shared: bool = False  # replicas read one copy; the peers cannot do this


ALL, NONE, X, Y = ("x", "y"), (), ("x",), ("y",)
RELAYOUTS = [
    Relayout("rows_to_columns", (ALL, NONE), (NONE, ALL)),
    Relayout("columns_to_rows", (NONE, ALL), (ALL, NONE)),
    Relayout("gather", (ALL, NONE), (NONE, NONE)),
    Relayout("slice", (NONE, NONE), (ALL, NONE)),
    Relayout("swap_axes", (X, Y), (Y, X)),
    Relayout("transposed_mesh", (X, Y), (X, Y), target_order="transposed"),
    Relayout("uneven_rows_to_columns", (ALL, NONE), (NONE, ALL), trim=(1, 3)),
    Relayout("block_to_rows", (X, Y), (ALL, NONE)),
    Relayout("nested_to_one_axis", (ALL, NONE), (X, NONE)),
    Relayout("partial_to_sharded", (NONE, NONE), (ALL, NONE), partial=True),
    Relayout("partial_to_replicated", (NONE, NONE), (NONE, NONE), partial=True),
    Relayout("reversed_devices", (ALL, NONE), (ALL, NONE), target_order="reversed"),
]
# These two write each byte once instead of once per device.
SHARED = [
    Relayout("gather_shared", (ALL, NONE), (NONE, NONE), shared=True),
    Relayout("partial_to_replicated_shared", (NONE, NONE), (NONE, NONE), partial=True, shared=True),
]
IDENTITY = Relayout("identity", (ALL, NONE), (ALL, NONE))


def relayout_named(name):
    return next(relayout for relayout in RELAYOUTS if relayout.name == name)


def device_order(order, axes):
    """The device at each position of the target's mesh."""
    count = math.prod(axes.values())
    if order == "reversed":
        return list(range(count))[::-1]
    if order == "transposed":
        rows, cols = axes["x"], axes["y"]
        return [c * rows + r for r in range(rows) for c in range(cols)]
    return list(range(count))


def blocks(dims, axes, order, shape):
    """The block (row, row_end, col, col_end) of each device."""
    result = [None] * len(order)
    for position, device in enumerate(order):
        rest, coordinates = position, {}
        for axis in reversed(list(axes)):
            rest, coordinates[axis] = divmod(rest, axes[axis])
        block = []
        for dim, size in zip(dims, shape):
            shard, shards = 0, 1
            for axis in dim:
                shard, shards = shard * axes[axis] + coordinates[axis], shards * axes[axis]
            block += [-(-shard * size // shards), -(-(shard + 1) * size // shards)]
        result[device] = tuple(block)
    return result


def block_elements(block):
    return (block[1] - block[0]) * (block[3] - block[2])


def blocks_text(of_blocks):
    return ",".join(":".join(map(str, block)) for block in of_blocks)


def is_grid(of_blocks):
    """Whether all blocks differ, as in the grids that ScaLAPACK has."""
    return len(set(of_blocks)) == len(of_blocks)


def layout_text(dims, partial):
    parts = ["-" if not d else d[0] if len(d) == 1 else f"({','.join(d)})" for d in dims]
    return f"[{','.join(parts)}]" + ("sum{x,y}" if partial else "")


@dataclasses.dataclass
class Entry:
    """One contestant of a cell."""

    column: str
    group: str  # which worker processes
    command: str  # without the arguments sets, calls, repetitions and full
    factor: float = 1.0  # of the time measured
    rounds: list = dataclasses.field(default_factory=list)
    cpu_rounds: list = dataclasses.field(default_factory=list)  # CPU seconds of all its processes
    value: float = None  # what the operation computed, where its worker says so
    note: str = ""  # why it has no number
    failed: bool = False  # because of an error

    @property
    def seconds(self):
        return statistics.median(self.rounds) if self.rounds else None


@dataclasses.dataclass
class Cell:
    kind: str  # "collective", "relayout", "dispatch", "memory", "kill"
    operation: str
    size_bytes: int
    clients: int  # processes, or devices where they are in one process
    entries: list
    set_bytes: int = 0  # of the buffers of one call, of all clients
    region_bytes: int = 0  # of the inputs or the results of one call, of one client
    written_bytes: int = 0  # by a relayout
    devices: str = "processes"  # or "threads": devices of one client
    # Of a job over several hosts: how many of how many clients each and their link, "2 x 4 1gbit";
    # and the most that a host has to send or to receive.
    hosts: str = ""
    link_bytes: int = 0

    @property
    def name(self):
        where = f"P={self.clients}" if self.devices == "processes" else f"devices={self.clients}"
        where = self.hosts or where
        size = "" if not self.size_bytes else f" {format_size(self.size_bytes)}"
        return f"{self.operation}{size} {where}"

    def is_selected(self, pattern):
        """Whether `--only pattern` selects the cell; "relayout" is part of a relayout's name."""
        kind = "relayout " if self.kind == "relayout" else ""
        return re.search(pattern, kind + self.name) is not None

    def entry(self, column):
        return next((entry for entry in self.entries if entry.column == column), None)

    def seconds(self, column):
        entry = self.entry(column)
        return entry.seconds if entry else None


def collective_cells(clients, sizes, columns):
    cells = []
    for operation in COLLECTIVES:
        for size in sizes:
            # A whole number of floats in each part, because terms are f32.
            parts = 1 if operation == "broadcast" else clients
            if size % (4 * parts if "reduce" in operation else parts):
                continue
            entries = []
            for column in columns:
                if column == "scalapack" or column == "gloo" and operation == "reduce_scatter":
                    continue
                private = column == "tessera_private"
                if private and operation != "all_reduce":
                    continue
                extra = " memory=private" if private else ""
                group = "tessera" if private else column
                entries.append(Entry(column, group, f"{operation} bytes={size}{extra}"))
            cell = Cell("collective", operation, size, clients, entries)
            cell.set_bytes, cell.region_bytes = 2 * size * clients, size
            cells.append(cell)
    others = ("scalapack", "tessera_private")
    barriers = [Entry(c, c, "barrier") for c in columns if c not in others]
    cells.append(Cell("collective", "barrier", 0, clients, barriers))
    of_mesh = [Entry("tessera", "tessera", "mesh_barrier")]
    cells.append(Cell("collective", "mesh_barrier", 0, clients, of_mesh))
    return cells


def relayout_cell(relayout, side, element_bytes, clients, columns, devices="processes", group=""):
    """The cell of a relayout of a matrix of side x side elements."""
    axes = {"x": 2, "y": clients // 2}
    shape = (side - relayout.trim[0], side - relayout.trim[1])
    order = device_order(relayout.target_order, axes)
    source = blocks(relayout.source, axes, list(range(clients)), shape)
    target = blocks(relayout.target, axes, order, shape)
    size = side * side * element_bytes
    ours = (
        f"relayout rows={shape[0]} cols={shape[1]} element={element_bytes} "
        f"mesh=x:{axes['x']},y:{axes['y']} devices={','.join(map(str, range(clients)))} "
        f"to_devices={','.join(map(str, order))} "
        f"from_layout={layout_text(relayout.source, relayout.partial)} "
        f"to_layout={layout_text(relayout.target, False)}"
        + (" replicas=shared" if relayout.shared else "")
    )
    move = f"element={element_bytes} from={blocks_text(source)} to={blocks_text(target)}"
    peer_operations = {"scalapack": "pdgemr2d", "gloo": "alltoallv"}
    entries = []
    for column in columns:
        if column in ("tessera", "before"):
            entries.append(Entry(column, group or column, ours))
        elif column not in PEERS:
            continue
        elif relayout.partial:
            operation = "reduce_scatter" if any(relayout.target) else "all_reduce"
            if column == "scalapack" or column == "gloo" and operation == "reduce_scatter":
                continue
            entries.append(Entry(column, column, f"{operation} bytes={size}"))
        elif column == "scalapack":
            if is_grid(source) and is_grid(target):
                entries.append(Entry(column, "ompi_tuned", f"pdgemr2d {move}"))
        else:
            operation = peer_operations.get(column, "alltoallw")
            entries.append(Entry(column, column, f"{operation} {move}"))
    name = relayout.name + (" f64" if element_bytes == 8 else "")
    cell = Cell("relayout", name, size, clients, entries, devices=devices)
    cell.set_bytes = sum(map(block_elements, source + target)) * element_bytes
    cell.region_bytes = max(map(block_elements, source + target)) * element_bytes
    if relayout.partial:  # the peers reduce the whole matrix
        cell.region_bytes = size
    cell.written_bytes = (
        size if relayout.shared else sum(map(block_elements, target)) * element_bytes
    )
    return cell


def dispatch_cells():
    """The cost of a call that moves almost no bytes: relayouts of a matrix of 1 KiB, and one of
    64 MiB whose rows already are on the devices that need them."""
    cells = []
    for name, relayout, side in [
        ("identity", IDENTITY, 16),
        ("local", relayout_named("slice"), 16),
        ("cached", relayout_named("rows_to_columns"), 16),
        ("identity", IDENTITY, 4096),
        ("local", relayout_named("slice"), 4096),
    ]:
        cell = relayout_cell(relayout, side, 4, 2, ["tessera"], "threads", "tessera_pair")
        cell.kind, cell.operation, cell.set_bytes = "dispatch", f"dispatch_{name}", 0
        cells.append(cell)
    return cells


def memory_cell(size, clients, devices):
    """Copies by one or two processes, measured with the contestants of a phase."""
    entries = [
        Entry(
            column,
            "memory",
            f"copy bytes={size} processes={processes} stores={stores}",
            1 / processes,
        )
        for column, (processes, stores, _) in MEMORY.items()
    ]
    cell = Cell("memory", "copy", size, clients, entries, devices=devices)
    cell.set_bytes, cell.region_bytes = 4 * size, size
    return cell


def kill_cells(quick, only):
    """One of 4 clients is killed: all_reduces of vectors spread over the memory they hold."""
    cells = []
    for size in KILL_SIZES[:1] if quick else KILL_SIZES:
        bytes_each = size // 2 // KILL_SETS
        command = f"all_reduce bytes={bytes_each} sets={KILL_SETS}"
        cell = Cell("kill", "killed_client", size, 4, [Entry("tessera", "tessera", command)])
        cell.set_bytes, cell.region_bytes = size * cell.clients, size // 2
        cells.append(cell)
    return [cell for cell in cells if cell.is_selected(only)]


@dataclasses.dataclass
class Phase:
    """Cells that share worker processes."""

    name: str
    clients: int
    cells: list


def add_before(phases):
    """Makes another build of Tessera a contestant of every cell."""
    for phase in phases:
        for cell in phase.cells:
            cell.entries += [
                Entry("before", f"{entry.group}_before", entry.command) for entry in cell.entries
            ]


def make_phases(quick, only, columns):
    sizes = QUICK_SIZES if quick else SIZES
    sides = [4096] if quick else [4096, 8192]
    relayouts = RELAYOUTS[:1] if quick else RELAYOUTS + SHARED
    phases = [Phase("dispatch", 2, dispatch_cells())]
    for clients in [2, 4] if quick else [2, 4, 8]:
        some = [c for c in columns if c != "tessera_private" or clients == 4]
        if quick:
            some = [c for c in some if c not in ("tessera_private", "ompi_no_cma")]
        cells = collective_cells(clients, sizes, some)
        if clients == 4:
            cells.append(relayout_cell(relayouts[0], 4096, 8, clients, some))
            for side in sides:
                cells += [relayout_cell(r, side, 4, clients, some) for r in relayouts]
        phases.append(Phase(f"{clients} clients", clients, cells))
    if not quick:
        cells = [
            relayout_cell(r, side, 4, 8, columns, "threads", "tessera_devices")
            for side in sides
            for r in relayouts
        ]
        phases.append(Phase("8 devices of one client", 8, cells))
    for phase in phases:
        phase.cells = [c for c in phase.cells if c.is_selected(only)]
    return [phase for phase in phases if phase.cells]
