// SPDX-License-Identifier: Apache-2.0
// main() of every test binary, and the count of failed assertions that a forked rank reports as its status.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>

#include "support/ranks.hpp"

namespace {

std::atomic<int> failures{0};

// A forked rank leaves by _exit in the middle of a test case, before doctest would count: so count as they come.
struct FailureCounter : doctest::IReporter {
  explicit FailureCounter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& data) override {
    if (data.m_failed) ++failures;
  }
  void log_message(const doctest::MessageData& data) override {
    if (data.m_severity & doctest::assertType::is_warn) return;
    ++failures;
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("failure_counter", 1, FailureCounter);

}  // namespace

namespace tandem::test {

int failed_assertions() noexcept { return failures.load(); }

}  // namespace tandem::test
