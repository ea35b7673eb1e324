// On which meshes a configuration can train: the rules, in one place.
#pragma once

#include <string>
#include <vector>

#include "launch/run_config.h"

namespace lt2 {

// Why the configuration cannot train on the mesh, whatever its [parallel] says; empty: it can.
std::vector<std::string> MeshProblems(const RunConfig& config, const Mesh& mesh);

// The same of the mesh that [parallel] asks for on so many ranks, and whether there is one.
std::vector<std::string> MeshProblems(const RunConfig& config, int ranks);

// Every mesh of so many ranks without problems, fastest axis last: few stages first, then few
// tensor-parallel ranks, then few context-parallel ones.
std::vector<Mesh> LegalMeshes(const RunConfig& config, int ranks);

}  // namespace lt2
