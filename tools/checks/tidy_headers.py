# SPDX-License-Identifier: Apache-2.0
"""The names that the headers of third_party/BUILD declare, for the rule `include` of tools/tidy."""


def _of(scope, names):
    return [scope + name for name in names.split()]


# Header -> regular expressions of whole words. Names that other headers declare too, such as
# std::size and the std::remove of <cstdio>, are left out.
PRECOMPILED = {
    "algorithm": _of(
        "std::",
        "adjacent_find all_of any_of binary_search clamp copy copy_backward copy_if copy_n count "
        "count_if equal equal_range fill fill_n find find_end find_first_of find_if find_if_not "
        "for_each for_each_n generate generate_n includes inplace_merge is_heap is_partitioned "
        "is_permutation is_sorted is_sorted_until iter_swap lexicographical_compare lower_bound "
        "make_heap max max_element merge min min_element minmax minmax_element mismatch "
        "next_permutation none_of nth_element partial_sort partition partition_copy "
        "partition_point pop_heap prev_permutation push_heap remove_copy remove_copy_if remove_if "
        "replace replace_if reverse reverse_copy rotate sample search search_n set_difference "
        "set_intersection set_symmetric_difference set_union shuffle sort sort_heap "
        "stable_partition stable_sort swap_ranges transform unique unique_copy upper_bound",
    ),
    "atomic": _of("std::", r"atomic(_\w+)? memory_order(_\w+)?"),
    "condition_variable": _of("std::", "condition_variable(_any)? cv_status"),
    "cstdint": _of(
        "",
        r"u?int((_fast|_least)?(8|16|32|64)|ptr|max)_t U?INT(8|16|32|64|PTR)_(C|MAX|MIN) SIZE_MAX",
    ),
    "functional": _of(
        "std::",
        "bind_front cref equal_to function greater greater_equal hash invoke less less_equal minus "
        "multiplies not_fn plus ref reference_wrapper",
    ),
    "map": _of("std::", "map multimap"),
    "memory": _of(
        "std::",
        r"(const|dynamic|static)_pointer_cast addressof align allocator allocator_traits "
        r"construct_at default_delete destroy(_at|_n)? enable_shared_from_this make_shared "
        r"make_unique shared_ptr uninitialized_\w+ unique_ptr weak_ptr",
    ),
    "mutex": _of(
        "std::",
        "(recursive_|timed_)?mutex adopt_lock call_once defer_lock lock_guard once_flag "
        "scoped_lock try_to_lock unique_lock",
    ),
    "numeric": _of(
        "std::",
        "accumulate adjacent_difference exclusive_scan gcd inclusive_scan inner_product iota lcm "
        "midpoint partial_sum reduce transform_reduce",
    ),
    "optional": _of("std::", "make_optional nullopt nullopt_t optional"),
    "set": _of("std::", "multiset set"),
    "string": _of("std::", "char_traits getline sto(d|f|i|l|ld|ll|ul|ull) string to_string"),
    "thread": _of("std::", "jthread this_thread thread"),
    "utility": _of(
        "std::",
        "as_const declval exchange forward in_place in_range index_sequence integer_sequence "
        "make_index_sequence make_pair move move_if_noexcept pair piecewise_construct swap",
    ),
    "vector": _of("std::", "vector"),
    "absl/status/statusor.h": _of("absl::", "StatusOr"),
    "absl/strings/numbers.h": _of("absl::", "Simple(Atob|Atod|Atof|Atoi|HexAtoi)"),
    "absl/strings/str_cat.h": _of(
        "absl::", r"AlphaNum Dec Hex StrAppend StrCat kSpacePad\d+ kZeroPad\d+"
    ),
    "absl/strings/str_join.h": _of("absl::", "StrJoin (AlphaNum|Pair|Stream)Formatter"),
    "absl/time/clock.h": _of("absl::", "GetCurrentTimeNanos Now SleepFor"),
    "absl/time/time.h": _of(
        "absl::",
        r"(Format|Parse)(Duration|Time) (From|To)(Chrono|Time|Unix)\w+ Duration Hours "
        r"Infinite(Duration|Future|Past) (Local|UTC)TimeZone (Micro|Milli|Nano)seconds Minutes "
        r"Seconds Time TimeZone To(Double|Int64)\w+ UnixEpoch ZeroDuration",
    ),
    "absl/types/span.h": _of("absl::", "Make(Const)?Span Span"),
    "gmock/gmock-matchers.h": _of("", r"(ASSERT|EXPECT)_THAT MATCHER(_P\d*)?")
    + _of(
        "testing::",
        "(All|Any)Of(Array)? Contains ContainsRegex Each (Unordered)?ElementsAre(Array)? EndsWith "
        "Eq ExplainMatchResult Field Ge Gt HasSubstr IsNan IsNull IsSubsetOf IsSupersetOf Key Le "
        "Lt MatchesRegex Ne Not NotNull Optional Pair Pointee Pointwise Property ResultOf SizeIs "
        "StartsWith StrCaseEq StrEq StrNe Truly VariantWith WhenSorted (Double|Float)(Eq|Near)",
    ),
    "gmock/gmock-more-matchers.h": _of("testing::", "IsEmpty IsFalse IsTrue"),
    "gtest/gtest.h": _of(
        "",
        r"(ASSERT|EXPECT)_(?!CALL\b|THAT\b)\w+ ADD_FAILURE(_AT)? FAIL GTEST_\w+ "
        r"INSTANTIATE_T\w+ RUN_ALL_TESTS SCOPED_TRACE SUCCEED TEST(_[FP])? TYPED_TEST\w*",
    )
    + _of(
        "testing::",
        r"AddGlobalTestEnvironment Assertion(Failure|Result|Success) Combine Environment "
        r"InitGoogleTest Message PrintToString\w* TempDir Test TestInfo TestParamInfo "
        r"TestWithParam UnitTest Values(In)?",
    ),
}
