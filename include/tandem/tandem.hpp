// SPDX-License-Identifier: Apache-2.0
// Everything for training: includes only. Programs that need the collectives alone include those; they need no
// libtorch.
#pragma once

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
#include "tandem/comm/communicator.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/comm/spawn.hpp"
#include "tandem/core/error.hpp"
#include "tandem/plan/check.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/strategy/ddp.hpp"
#include "tandem/tensor/collectives.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/trainer/trainer.hpp"
#include "tandem/transport/shm_ring.hpp"
#include "tandem/version.hpp"
