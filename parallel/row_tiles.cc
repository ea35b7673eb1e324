#include "parallel/row_tiles.h"

#include <deque>
#include <map>
#include <utility>

#include "core/strings.h"
#include "kernels/elementwise.h"

namespace lt2 {
namespace {

struct TileMail {
  // Between tiles here, by (source, destination).
  std::map<std::pair<int, int>, std::deque<Tensor>> here;
  // Copies of what is on its way to others: a rank never waits for its readers.
  std::deque<std::pair<Tensor, Pending>> sent;

  ~TileMail() {
    for (const auto& [copy, pending] : sent) pending.Wait();
  }
};

// A tile among all tiles of a row, for messages between neighbours.
class TileCommunicator final : public Communicator {
 public:
  TileCommunicator(Communicator& cp, int tiles, int tile, std::shared_ptr<TileMail> mail)
      : Communicator(tile, tiles, StrCat(cp.name(), " tiles"), SharedRecorder(cp)),
        cp_(cp),
        mail_(std::move(mail)) {
    CopyHostFrom(cp);
  }
  bool in_turn() const override { return true; }
  std::unique_ptr<Communicator> Split(int, int, std::string_view) override {
    CHECK(false) << "tiles are one group";
    return nullptr;
  }
  void Abort(int code) override { cp_.Abort(code); }

 protected:
  Pending Start(Collective message) override {
    const bool sends = message.kind == Collective::Kind::kSend;
    CHECK(sends || message.kind == Collective::Kind::kReceive)
        << message.label << ": tiles take turns, and cannot meet in " << Name(message.kind);
    recorder().Start(message.record);
    const int owner = message.peer / (size() / cp_.size());
    const Pending pending = owner == cp_.rank() ? Here(message, sends)
                            : sends             ? Send(message, owner)
                                                : cp_.ReceiveAsync(message.x, owner, message.label);
    recorder().End(message.record);
    return pending;
  }

 private:
  Pending Here(const Collective& message, bool sends) {
    if (sends) {
      mail_->here[{rank(), message.peer}].push_back(message.x.Clone());
      return {};
    }
    std::deque<Tensor>& queue = mail_->here[{message.peer, rank()}];
    CHECK(!queue.empty()) << message.label << ": tile " << rank() << " before tile "
                          << message.peer;
    message.x.CopyFrom(queue.front());
    queue.pop_front();
    return {};
  }

  Pending Send(const Collective& message, int owner) {
    std::deque<std::pair<Tensor, Pending>>& sent = mail_->sent;
    while (!sent.empty() && sent.front().second.done()) sent.pop_front();
    const Tensor copy = message.x.Clone();
    sent.emplace_back(copy, cp_.SendAsync(copy, owner, message.label));
    return {};
  }

  Communicator& cp_;
  const std::shared_ptr<TileMail> mail_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> TilesHere(Communicator& cp, int tiles) {
  CHECK_EQ(tiles % cp.size(), 0) << tiles << " tiles on " << cp.size() << " ranks";
  const auto mail = std::make_shared<TileMail>();
  const int here = tiles / cp.size();
  std::vector<std::unique_ptr<Communicator>> made;
  for (int i = 0; i < here; ++i) {
    made.push_back(std::make_unique<TileCommunicator>(cp, tiles, cp.rank() * here + i, mail));
  }
  return made;
}

void SumOverTiles(Stream& stream, Communicator& tile, const Tensor& x) {
  if (tile.rank() > 0) {
    const Tensor before = Tensor::Empty(x.shape(), x.dtype(), x.device());
    tile.Receive(before, tile.rank() - 1, "sum of the tiles before");
    AccumulateInto(stream, x, before);
  }
  if (tile.rank() + 1 == tile.size()) return;
  tile.Send(x, tile.rank() + 1, "sum of the tiles before");
  x.Zero();
}

GradientTurns::GradientTurns(std::span<Param* const> params, Communicator& replicas, int ranks)
    : params_(params.begin(), params.end()),
      replicas_(replicas),
      ranks_(ranks),
      at_(replicas.rank() % ranks) {}

void GradientTurns::Take(bool first_backward) {
  for (const Pending& pending : std::exchange(sent_, {})) pending.Wait();
  const bool last_rank = at_ + 1 == ranks_;
  if (ranks_ == 1 || (last_rank && first_backward)) return;
  const int from = last_rank ? replicas_.rank() - at_ : replicas_.rank() + 1;
  for (const Param* param : params_) replicas_.Receive(param->main_grad, from, "gradients so far");
}

void GradientTurns::HandOn(bool last_backward) {
  if (ranks_ == 1 || (at_ == 0 && last_backward)) return;
  const int to = replicas_.rank() + (at_ == 0 ? ranks_ : 0) - 1;
  for (const Param* param : params_) {
    sent_.push_back(replicas_.SendAsync(param->main_grad, to, "gradients so far"));
  }
  if (!last_backward) return;
  for (const Pending& pending : std::exchange(sent_, {})) pending.Wait();
  for (const Param* param : params_) param->main_grad.Zero();
}

}  // namespace lt2
