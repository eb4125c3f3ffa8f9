"""How a fuzz target becomes a test."""

def fuzz_test(name, srcs, deps, runs = 20000):
    """A test of a fuzz target on corpus/NAME without its "_fuzz".

    With --config=asan libFuzzer makes `runs` inputs from the corpus, by a fixed seed; otherwise the
    inputs of the corpus run once each (fuzz.h).

    Args:
      name: of the test, ending in "_fuzz".
      srcs: the target.
      deps: what the source includes, besides fuzz.h.
      runs: how many inputs; a count and not a time, so that a run can be repeated.
    """
    corpus = "corpus/" + name[:-len("_fuzz")]
    native.cc_test(
        name = name,
        size = "medium",
        srcs = srcs,
        args = [
            "-runs=%d" % runs,
            "-seed=1",
            "-max_len=256",
            "-print_final_stats=1",
            "fuzz/" + corpus,
        ],
        data = native.glob([corpus + "/*"]),
        # libFuzzer is part of the executable and calls functions that the executable exports.
        linkstatic = True,
        deps = deps + [":fuzz"] + select({
            ":libfuzzer": [":libfuzzer_setup"],
            "//conditions:default": [":replay_main"],
        }),
    )
