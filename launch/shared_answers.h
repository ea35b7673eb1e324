// Known answers of operators whose tokens ranks of a context-parallel group share: scans, which
// hand their states on, convolutions and attention, which read tokens to the left.
//
// Scans of shared tokens know no initial and final states. These become tokens: before a document K
// with unit keys, whose values are the rows of its initial state, and behind it K with unit
// queries, whose outputs are the rows of its final one.
#pragma once

#include <string>

#include "core/strings.h"
#include "kernels/case.h"

namespace lt2 {

inline std::string TooFewTokens(int cp) { return StrCat("too few tokens for ", cp, " ranks"); }
// Why `cp` ranks cannot share the case's tokens; empty if they can.
std::string WhyNotShared(const CaseData& data, int cp);
// What RunCase gives on one rank, of as many: threads on the CPU.
CaseResult RunShared(const OpCase& op_case, const CaseData& data, int cp, DType dtype);

}  // namespace lt2
