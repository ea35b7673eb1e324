// Random instances of the scans' operator cases (linear_attention, retention, simple_gla, gla,
// delta_rule, gated_delta_rule, kda), and what their tests do with them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/case.h"

namespace lt2 {

struct ScanSizes {
  int64_t tokens, key_heads, heads, k, v;
  std::vector<int64_t> cu_seqlens;
};

// Up to 300 tokens in documents of up to 150, many of them of three tokens or fewer.
ScanSizes RandomScanSizes(std::mt19937_64& random);

// One row of tokens. A token's log-decays lie in (-strongest, 0), its q and k are no longer than 1,
// its beta lies in (0, 2).
CaseData ScanProblem(const std::string& op, uint64_t seed, const ScanSizes& sizes,
                     double strongest);
// What bfloat16 can hold of q, k, v and the cotangents; gates and states stay float32.
void RoundToBf16(CaseData& data);

CaseResult RunScan(const CaseData& data, Backend backend, DType dtype);
void ExpectNear(const HostArrays& got, const HostArrays& want, double tolerance);
// The CPU in float64 and float32 against the token-by-token reference.
void ExpectNearReference(const CaseData& data);

// Arrays with a row a document, and arrays [1, tokens, …].
bool ByDocument(const std::string& name);
bool BySequence(const std::string& name);
// Tokens [begin, end) of an array [1, tokens, …] or [tokens, …], and of a problem as one document.
HostArray TokensOf(const HostArray& x, int64_t tokens, int64_t begin, int64_t end);
CaseData PartOf(const CaseData& data, int64_t tokens, int64_t begin, int64_t end);

}  // namespace lt2
