// SPDX-License-Identifier: Apache-2.0
// The front door of Gemini: puts a LibTorch training loop of your own under a memory budget with
// three lines. Installed as <gemini/gemini.h>; link gemini::gemini.
//
//     #include <gemini/gemini.h>
//     gemini::Session session({.device_memory = "2GiB"});
//     gemini::AdamW optimizer(session, *model, torch::optim::AdamWOptions(1e-3));
//
// The rest of the loop stays as it is: forward, backward, zero_grad, clip_grad_norm_, gradient
// accumulation, evaluation, step() and LibTorch's learning rate schedulers. Once a module has an
// optimizer of these, its parameters have bytes only while an operator uses them
// (docs/examples/README.md says what becomes of what).
// Thread: one at a time, and no operator on the module's tensors meanwhile.
// Owner:  an optimizer and a PlainMemory may outlive their session; their calls then throw. The
//         module's parameters have no bytes any more once the session has ended: save it before.
// Errors: c10::Error with a text that says what happened and what to do next. While a session
//         lives, errors of LibTorch's carry no C++ backtrace, whose symbols take seconds to find.
//         A program that set a fetcher of its own (c10::SetStackTraceFetcher) sets it again after
//         the session.
#pragma once
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gemini {

namespace client::front {
class FrontSession;
class FrontModel;
}  // namespace client::front

// What a session asks for. Sizes are written "64MiB", "1.5GiB" or in bytes; all are optional.
struct SessionOptions {
  // What operators work in: parameters that are in use, activations, temporaries. Not given: a
  // quarter of the memory that is free when the first model comes.
  std::string device_memory = {};
  // For parameters, gradients and optimizer states. Not given: each model takes what it needs as it
  // comes; of a daemon, what the first model needs.
  std::string host_memory = {};
  // A directory on NVMe and how much of it, written DIR:SIZE, for what HOST cannot hold; with
  // host_memory. Of a daemon the size alone.
  std::string nvme = {};
  // Not given: chosen for the first model, so that its step is predicted to be fast.
  std::string chunk_size = {};
  // The socket of a geminid that is shared with other jobs. Not given: a server in this process.
  std::string daemon = {};
  std::string device = {};  // "cpu" (not given) or "cuda:N".
  std::string policy = {};  // auto (not given), static, cpu, cuda or online: docs/architecture.md.
  std::string name = {};    // Of this job, shown by memstat.
};

// What a session has used so far; bytes.
struct SessionStats {
  int64_t device_budget_bytes = 0;
  int64_t device_peak_bytes = 0;  // Largest sum of chunks and of what operators allocated.
  int64_t host_bytes = 0;         // Given to models.
  int64_t nvme_bytes = 0;
  int64_t chunk_bytes = 0;  // The size of a chunk; 0 before the first model.
  int64_t fetch_bytes = 0;  // Copied from HOST to DEVICE.
  int64_t evict_bytes = 0;  // Copied from DEVICE to HOST.
};

// A memory budget for the models that are trained in it: a lease of a server's memory. There is one
// session a process at a time, and it may have several models, each with one optimizer.
class Session {
 public:
  // Checks the options; memory is taken when the first optimizer is made. Throws what is wrong with
  // an option, by its name, or that a session lives already.
  explicit Session(SessionOptions options = {});
  // Gives all memory back. Errors are lost: call Close to see them.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Finishes pending updates and gives all memory back. Throws what failed since the last step; a
  // second call does nothing. A module in a PlainMemory keeps its values, and what was changed of
  // them does not go back to the session.
  void Close();

  SessionStats stats() const;
  // Throws the first error that an operator or an update hit, if one did: nothing is updated after
  // it. The next step() throws it, too.
  void Check() const;

 private:
  friend class Optimizer;
  const std::shared_ptr<client::front::FrontSession> state_;
};

// An optimizer over all parameters of a module, whose states lie in the session's memory. It is a
// torch::optim::Optimizer: step(), step(closure), zero_grad, parameter groups, schedulers and
// torch::save and torch::load of it work as with LibTorch's own, in LibTorch's format. Its state()
// is empty, since the states lie in the session.
class Optimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::add_param_group;
  ~Optimizer() override;

  // Updates the parameters that have a gradient, each with its group's options as they are now. The
  // update is carried out while the next forward pass runs. Throws, and updates nothing: a gradient
  // holds a NaN or an infinity (names the parameter), a parameter got other storage, an option is
  // not supported or out of its range, or the session has failed before.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // Number of steps done.
  int64_t num_steps() const;

  // For torch::save and torch::load: options and states, in the format of LibTorch's optimizer of
  // the same name, which can load them. All states are in memory at once; Save (below) streams
  // them. Load the parameters first, then the optimizer.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  Optimizer(Session& session, torch::nn::Module& module,
            const std::vector<torch::optim::OptimizerParamGroup>& groups,
            std::unique_ptr<torch::optim::OptimizerOptions> defaults);

 private:
  friend class PlainMemory;
  friend void Save(const Optimizer& optimizer, const std::string& path);
  friend void Load(Optimizer& optimizer, const std::string& path);
  void AssignGroups();

  const std::shared_ptr<client::front::FrontModel> model_;
  size_t num_assigned_ = 0;  // Tensors of all groups when they were assigned last.
};

// Options of LAMB (You et al., arXiv:1904.00962).
struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  using betas_t = std::tuple<double, double>;
  explicit LambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double new_lr) override { lr_ = new_lr; }
};

// Options of LARS (You et al., arXiv:1708.03888).
struct LarsOptions : torch::optim::OptimizerCloneableOptions<LarsOptions> {
  explicit LarsOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, trust_coefficient) = 1e-3;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double new_lr) override { lr_ = new_lr; }
};

// The optimizer of one kind. `module` is the module itself, not its holder: *model.
template <typename Options>
class OptimizerWith : public Optimizer {
 public:
  // All parameters of the module, with the same options.
  OptimizerWith(Session& session, torch::nn::Module& module, Options options)
      : OptimizerWith(session, module, {torch::optim::OptimizerParamGroup(module.parameters())},
                      std::move(options)) {}
  // By groups; each parameter that requires a gradient is in one. A group without options of its
  // own gets `defaults`.
  OptimizerWith(Session& session, torch::nn::Module& module,
                const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults)
      : Optimizer(session, module, groups, std::make_unique<Options>(std::move(defaults))) {}
};

using AdamW = OptimizerWith<torch::optim::AdamWOptions>;  // Decays every parameter, as LibTorch's.
using Adam = OptimizerWith<torch::optim::AdamOptions>;
using SGD = OptimizerWith<torch::optim::SGDOptions>;
using Lamb = OptimizerWith<LambOptions>;
using Lars = OptimizerWith<LarsOptions>;

// Writes the optimizer's module, its states, step counts and groups' options to one safetensors
// file, tensor by tensor: nothing is in memory twice. Parameters and floating buffers are written
// as fp32, so that training goes on to the bit. The file appears when it is complete. Throws what
// the disk refused.
void Save(const Optimizer& optimizer, const std::string& path);
// Reads it back into an optimizer of the same kind over a module with the same tensors and groups.
// Throws what does not fit, by name, before anything has changed; or what could not be read.
void Load(Optimizer& optimizer, const std::string& path);

// While one lives, its optimizer's module has its values in plain memory, all at once: torch::save
// and torch::load of the module work, and so does every raw read. At its end what was changed goes
// back to the session. No training step meanwhile.
class PlainMemory {
 public:
  // Throws: the optimizer has one already, or memory is short.
  explicit PlainMemory(Optimizer& optimizer);
  // Brings the values back; an error is latched in the session, and the next step throws it.
  ~PlainMemory();
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

 private:
  struct Values;
  const std::unique_ptr<Values> values_;
};

}  // namespace gemini
