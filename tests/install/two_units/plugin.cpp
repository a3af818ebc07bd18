// SPDX-License-Identifier: Apache-2.0
// The shared library: makes the communicator that the program uses.
#include "every_header.hpp"

tandem::Communicator<tandem::ShmRing> plugin_join() { return tandem::join<tandem::ShmRing>(); }
bool plugin_catches() {
  try {
    throw tandem::Error(tandem::ErrorKind::argument, "thrown in the shared library");
  } catch (const tandem::Error&) {
    return true;
  }
}
void plugin_throw() { throw tandem::Error(tandem::ErrorKind::argument, "thrown in the shared library"); }
