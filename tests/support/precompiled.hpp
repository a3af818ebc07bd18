// SPDX-License-Identifier: Apache-2.0
// What most tests without libtorch include, parsed once. Each test includes what it uses all the same.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/comm/spawn.hpp"
