// SPDX-License-Identifier: Apache-2.0
// What every rank does. Declared without libtorch, so that the program that starts the ranks need not include it.
#pragma once

#include "gpt/options.hpp"
#include "gpt/text.hpp"

namespace gpt {

/// Trains as the options say, in this process as one of the ranks. Rank 0 prints and writes the results. Returns the
/// exit status of the rank; throws what goes wrong.
int train(const Options& options, const Corpus& corpus);

}  // namespace gpt
