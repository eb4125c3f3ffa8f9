"""Tests of whole jobs."""

load("//third_party:precompiled.bzl", "tessera_test")

_DEPS = [
    "//base:status",
    "//dtensor",
    "//layout",
    "//mesh",
    "//tests/support:clients",
    "//tests/support:job_forms",
    "//tests/support:tensors",
]

def job_test(deps = [], size = "medium", **attributes):
    """A tessera_test of jobs in several forms, with tensors on live meshes."""
    tessera_test(size = size, deps = deps + _DEPS, **attributes)

_OPS_DEPS = [
    "//base:dtype",
    "//base:shape",
    "//ops",
]

def ops_test(deps = [], **attributes):
    """A job_test of operations. TSan is left out: relayout_test has the same threads."""
    job_test(tags = ["no_tsan"], deps = deps + _OPS_DEPS, **attributes)
