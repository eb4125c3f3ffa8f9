# SPDX-License-Identifier: Apache-2.0
"""Names of demangled symbols, and of declarations in headers."""

import unittest

import exported_names

HEADER = """
#ifndef TESSERA_MESH_H_
#define TESSERA_MESH_H_
namespace TESSERA_PUBLIC tessera {
class Other;
class Mesh final {
 public:
  static StatusOr<Mesh> create(Options options = {});
};
inline constexpr int kAxes = 3;
std::ostream& operator<<(std::ostream& out, const Mesh& mesh);
namespace ops {
template <class T>
StatusOr<T> relu(const T& x);
}  // namespace ops
}  // namespace tessera
#endif
"""


class ExportedNamesTest(unittest.TestCase):
    def test_a_symbol_has_one_name(self):
        for symbol, name in [
            ("tessera::Mesh::create(std::vector<int, A<int> >)", "tessera::Mesh::create"),
            ("vtable for tessera::Device", "tessera::Device"),
            ("typeinfo name for tessera::Device", "tessera::Device"),
            ("non-virtual thunk to tessera::A::~A()", "tessera::A::~A"),
            ("guard variable for tessera::f()::x", "tessera::f"),
            ("tessera::Mesh::name[abi:cxx11]() const", "tessera::Mesh::name"),
            ("absl::StatusOr<tessera::T> tessera::ops::f<float>(tessera::T)", "tessera::ops::f"),
            ("tessera::operator<<(std::ostream&, tessera::Mesh const&)", "tessera::operator"),
            ("tessera::Mesh::operator==(tessera::Mesh const&) const", "tessera::Mesh::operator"),
            ("tessera::List<int>::size() const", "tessera::List::size"),
            ("grpc::Channel::~Channel()", "grpc::Channel::~Channel"),
        ]:
            self.assertEqual(exported_names.qualified_name(symbol), name)

    def test_a_header_declares_what_it_defines(self):
        self.assertEqual(
            exported_names.declared_names(HEADER),
            {"tessera::Mesh", "tessera::kAxes", "tessera::operator", "tessera::ops::relu"},
        )

    def test_only_lines_of_the_folder_count(self):
        text = '# 1 "/x.h"\nint a;\n# 7 "/p/tessera/b.h" 1 3\nint b;\n# 2 "/p/c.h"\nint c;'
        self.assertEqual(exported_names.lines_of("/p/tessera", text), "int b;")

    def test_other_names_are_found(self):
        names = exported_names.declared_names(HEADER)
        good = [
            "tessera::Mesh::create(int)",
            "typeinfo for tessera::Mesh",
            "absl::StatusOr<int> tessera::ops::relu<int>(int const&)",
        ]
        wrong = [
            "tessera::Other::f()",
            "tessera::ops::Mesh::f()",
            "grpc::Channel::f(tessera::Mesh)",
            "std::vector<tessera::Mesh>::~vector()",
            "void std::sort<tessera::Mesh*>(tessera::Mesh*, tessera::Mesh*)",
        ]
        self.assertEqual(exported_names.undeclared(good + wrong, names), wrong)


if __name__ == "__main__":
    unittest.main()
