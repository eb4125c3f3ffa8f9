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

def job_test(deps = [], **attributes):
    """A tessera_test of jobs in several forms, with tensors on live meshes."""
    tessera_test(deps = deps + _DEPS, **attributes)
