// SPDX-License-Identifier: Apache-2.0
// The safetensors format: the header's length (8 bytes), the header (JSON), the data; see safetensors.hpp.
#include "gpt/safetensors.hpp"

#include <unistd.h>

#include <bit>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "gpt/text.hpp"

namespace gpt {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian; swap the bytes");

std::string header_of(const std::vector<NamedWeights>& weights) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::size_t begin = 0;
  for (const NamedWeights& one : weights) {
    const std::size_t end = begin + one.values.size_bytes();
    header[one.name] = {{"dtype", "F32"}, {"shape", one.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that readers that map the file find aligned data
  return text;
}

void write(std::ofstream& file, const void* bytes, std::size_t count) {
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedWeights>& weights) {
  const std::string header = header_of(weights);
  const std::uint64_t length = header.size();
  const std::string part = path + '.' + std::to_string(::getpid()) + ".part";
  std::ofstream file(part, std::ios::binary);
  write(file, &length, sizeof length);
  write(file, header.data(), header.size());
  for (const NamedWeights& one : weights) write(file, one.values.data(), one.values.size_bytes());
  file.close();
  std::error_code fault;
  if (file) std::filesystem::rename(part, path, fault);
  if (file && !fault) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw InputError("cannot write to the file " + path);
}

}  // namespace gpt
