// SPDX-License-Identifier: Apache-2.0
//
// TESSERA_PUBLIC: the mark of what programs link. A public header opens the namespace with it:
//
//   namespace TESSERA_PUBLIC tessera {
//
// A shared library is compiled with hidden visibility, and exports the names of these namespaces
// alone. A source that includes the header needs no mark for what the header declares, with three
// exceptions:
// - An attribute is not allowed on `namespace a::b`: nested namespaces are opened one by one.
// - A friend declaration has no visibility. A friend function that a source defines is declared in
//   the namespace too.
// - g++ takes the visibility of a class from its first declaration, also where another header has
//   it: such a declaration stands in a marked namespace.
#ifndef TESSERA_BASE_PUBLIC_H_
#define TESSERA_BASE_PUBLIC_H_

#define TESSERA_PUBLIC [[gnu::visibility("default")]]

// The mark of an internal class that a public header declares: it stands at the definition, because
// the declaration in a marked namespace would export the members. The build of the shared library
// defines TESSERA_HIDE_INTERNALS. Elsewhere classes that derive from such a class would be more
// visible than it is, of which g++ warns.
#ifdef TESSERA_HIDE_INTERNALS
#define TESSERA_INTERNAL [[gnu::visibility("hidden")]]
#else
#define TESSERA_INTERNAL
#endif

#endif  // TESSERA_BASE_PUBLIC_H_
