#include "parallel/mpi_communicator.h"

#include <cstdlib>

#include "core/log.h"
#include "core/strings.h"
#include "parallel/mpi_thread.h"

namespace lt2 {
namespace {

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiThread> mpi, MPI_Comm comm, int rank, int size,
                  std::string_view name)
      : Communicator(rank, size, name, mpi->recorder()), mpi_(std::move(mpi)), comm_(comm) {
    const MpiThread::World& world = mpi_->world();
    SetHost(world.local_rank, world.local_size, world.host);
  }

  ~MpiCommunicator() override {
    if (comm_ == MPI_COMM_WORLD) return;
    mpi_->Call([this] { CheckMpi(MPI_Comm_free(&comm_), "MPI_Comm_free", name().c_str()); });
  }

  std::unique_ptr<Communicator> Split(int color, int key, std::string_view name) override {
    MPI_Comm part = MPI_COMM_NULL;
    int rank = 0, size = 0;
    mpi_->Call([&] {
      CheckMpi(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split", this->name().c_str());
      MPI_Comm_rank(part, &rank);
      MPI_Comm_size(part, &size);
    });
    return std::make_unique<MpiCommunicator>(mpi_, part, rank, size, name);
  }

  void Abort(int code) override { mpi_->Abort(code); }

 protected:
  Pending Start(Collective collective) override {
    CHECK(!collective.x.defined() || collective.x.on_host())
        << collective.label << ": MPI moves host memory, NCCL what lies on GPUs";
    if (collective.kind == Collective::Kind::kAllReduce) {
      const int64_t n = collective.x.size();
      for (int r = 0; r < size(); ++r) {
        collective.counts.push_back(n * (r + 1) / size() - n * r / size());
      }
    }
    // Messages between two ranks have tag 0; the next kTags collectives differ from each other.
    const bool message =
        collective.kind == Collective::Kind::kSend || collective.kind == Collective::Kind::kReceive;
    const int tag = message ? 0 : 1 + static_cast<int>(calls_++ % kTags);
    return mpi_->Post(comm_, rank(), tag, std::move(collective));
  }

 private:
  static constexpr uint64_t kTags = 30000;  // every MPI has tags up to 32767

  std::shared_ptr<MpiThread> mpi_;
  MPI_Comm comm_;
  uint64_t calls_ = 0;
};

int IntVariable(const char* name, int absent) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : absent;
}

}  // namespace

int LaunchedProcesses() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (std::getenv(name)) return IntVariable(name, 1);
  }
  // A batch script has SLURM_PROCID and SLURM_NTASKS too; only a step's tasks have this one.
  if (std::getenv("SLURM_PROCID") && std::getenv("SLURM_STEP_NUM_TASKS")) {
    return IntVariable("SLURM_STEP_NUM_TASKS", 1);
  }
  return std::getenv("PMIX_RANK") || std::getenv("PMI_RANK") ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<Communicator>> StartWorld() {
  const int launched = LaunchedProcesses();
  if (launched == 1) return MakeGroupOfOne();
  auto mpi = std::make_shared<MpiThread>();
  const MpiThread::World& world = mpi->world();
  if (launched > 1 && world.size != launched) {
    return absl::FailedPreconditionError(
        StrCat("the launcher started ", launched, " processes, but MPI sees ", world.size,
               ": start with mpirun -n ", launched, ", or with srun --mpi=pmix (srun --mpi=list ",
               "shows what this cluster offers)"));
  }
  SetLogRank(world.rank, world.size, world.host);
  return std::make_unique<MpiCommunicator>(mpi, MPI_COMM_WORLD, world.rank, world.size, "world");
}

}  // namespace lt2
