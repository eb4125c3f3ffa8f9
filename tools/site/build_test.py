# SPDX-License-Identifier: Apache-2.0
"""Names of headers beside names of the reference."""

import unittest
import zlib

import build

PREPROCESSED = """
namespace tessera {
class Declared;
enum class Kind : int;
class Mesh {
 public:
  int size() const;
};
struct alignas(8) Bytes : std::array<std::byte, 8> {};
template <class T>
int Mesh::count() const { return 1; }
template <>
struct Traits<float> {};
namespace internal {
int hidden();
}
namespace ops {
int add(int a, int b = {}); int sub(int a, int b);
template <class T>
requires(sizeof(T) > 1) T one();
decltype(auto) visit(int x);
}
}
namespace other {
int foreign();
}
"""
INVENTORY = (
    b"# Sphinx inventory version 2\n# Project: Tessera\n# Version: \n# zlib\n"
    + zlib.compress(b"tessera::Mesh cpp:class 1 mesh.html#x -\nindex std:doc -1 index.html Start\n")
)


class NamesTest(unittest.TestCase):
    def test_names_of_the_api_at_namespace_scope(self):
        names = ["Bytes", "Mesh", "ops::add", "ops::one", "ops::sub", "ops::visit"]
        expected = ["tessera::" + name for name in names]
        self.assertEqual(sorted(build.api_names(PREPROCESSED)), expected)

    def test_names_of_a_built_site(self):
        self.assertEqual(build.reference_names(INVENTORY), {"tessera::Mesh"})


if __name__ == "__main__":
    unittest.main()
