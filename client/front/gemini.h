// SPDX-License-Identifier: Apache-2.0
// The public API of Gemini, which trains LibTorch models that are larger than the memory of the
// device. Parameters, gradients and optimizer states are kept in host memory or on NVMe, and are
// copied to the device when operators need them. Three lines put your own training loop under a
// memory budget. Installed as <gemini/gemini.h>; link gemini::gemini.
//
//     #include <gemini/gemini.h>
//     gemini::Session session({.device_memory = "2GiB"});
//     gemini::AdamW optimizer(session, *model, torch::optim::AdamWOptions(1e-3));
//
// The rest of the loop stays as it is: forward, backward, zero_grad, clip_grad_norm_, gradient
// accumulation, evaluation, step() and LibTorch's learning rate schedulers. Once a module has one
// of these optimizers, its parameters have an address only while an operator uses them
// (docs/examples/README.md lists what that changes for other calls).
// Thread: one thread at a time may call, and no operator may use the module's tensors during a
//         call.
// Owner:  an optimizer and a PlainMemory may outlive their session; an optimizer's calls then
//         throw, except num_steps(). When the session has ended, the module's parameters have no
//         values any more, unless the module is in a PlainMemory: save them before.
// Errors: c10::Error with a text that says what happened and what to do next. While a session
//         exists, errors of LibTorch carry no C++ backtrace, because finding its symbols takes
//         seconds. A program with a fetcher of its own (c10::SetStackTraceFetcher) sets it again
//         after the session.
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

// What a session asks for. All fields are optional. Sizes are written "64MiB", "1.5GiB" or in
// bytes.
struct SessionOptions {
  // The memory that operators work in: parameters in use, activations and temporaries. Default: a
  // quarter of the host memory that is free when the first optimizer is made, or what host_memory
  // leaves of it, if that is less, but never less than a sixteenth. On a GPU it is fifteen
  // sixteenths of the GPU's free memory, and with `daemon` it must be said there.
  std::string device_memory = {};
  // The memory for parameters, gradients and optimizer states. Default: each model takes what it
  // needs when its optimizer is made. With `daemon` the default is what the first model needs.
  std::string host_memory = {};
  // The space on NVMe for what host_memory cannot hold, written DIR:SIZE. Set host_memory, too.
  // With `daemon`, write the size alone.
  std::string nvme = {};
  // The size of a chunk, the unit that is moved. Default: the one with the fastest predicted step
  // of the first model.
  std::string chunk_size = {};
  // The socket of a geminid that other jobs share. Default: a server inside this process.
  std::string daemon = {};
  std::string device = {};  // "cpu" (default) or "cuda:N".
  std::string policy = {};  // auto (default), static, cpu, cuda or online: docs/architecture.md.
  std::string name = {};    // The job's name, shown by memstat.
};

// What a session has used so far, in bytes.
struct SessionStats {
  int64_t device_budget_bytes = 0;
  int64_t device_peak_bytes = 0;  // Largest sum of chunks and of operators' allocations.
  int64_t host_bytes = 0;         // Reserved for the models' spaces.
  int64_t nvme_bytes = 0;         // As host_bytes.
  int64_t chunk_bytes = 0;        // The size of a chunk; 0 before the first model.
  int64_t fetch_bytes = 0;        // Copied from HOST to DEVICE.
  int64_t evict_bytes = 0;        // Copied from DEVICE to HOST.
};

// A memory budget and the models that are trained in it. A process has at most one session at a
// time. A session may have several models, each with one optimizer.
class Session {
 public:
  // Checks the options. Memory is acquired when the first optimizer is made. Throws if an option is
  // invalid, with its name, or if the process has a session already.
  explicit Session(SessionOptions options = {});
  // Releases all memory. Errors are lost: call Close to see them.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Finishes pending updates and releases all memory. Throws what failed since the last step. A
  // second call does nothing. A module in a PlainMemory keeps its values, but changes to them are
  // not written back to the session.
  void Close();

  SessionStats stats() const;
  // Throws the first error of an operator or an update, if there was one. After such an error
  // nothing is updated, and the next step() throws it, too.
  void Check() const;

 private:
  friend class Optimizer;
  const std::shared_ptr<client::front::FrontSession> state_;
};

// An optimizer over all parameters of a module. The session keeps its states, so state() is empty.
// It is a torch::optim::Optimizer: step(), step(closure), zero_grad, parameter groups, schedulers,
// torch::save and torch::load work as with LibTorch's own, and in LibTorch's format.
class Optimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::add_param_group;
  ~Optimizer() override;

  // Updates the parameters that have a gradient, with the present options of their groups. The
  // update itself runs during the next forward pass. Throws, and updates nothing, if a gradient
  // holds a NaN or an infinity (the message names the parameter), if a parameter's storage was
  // replaced, if an option is not supported or out of its range, or if the session has failed.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // Returns the number of steps done; 0 once the session has ended.
  int64_t num_steps() const;

  // Write and read options and states for torch::save and torch::load, in the format of LibTorch's
  // optimizer of the same name, which can load them. All states are in memory at once, while Save
  // (below) holds one tensor at a time. Load the parameters before the optimizer.
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

// An optimizer with the options of one algorithm. `module` is the module itself, not its holder:
// pass *model.
template <typename Options>
class OptimizerWith : public Optimizer {
 public:
  // Optimizes all parameters of the module with the same options.
  OptimizerWith(Session& session, torch::nn::Module& module, Options options)
      : OptimizerWith(session, module, {torch::optim::OptimizerParamGroup(module.parameters())},
                      std::move(options)) {}
  // Optimizes parameter groups. Each parameter that requires a gradient is in exactly one. A group
  // without options of its own gets `defaults`.
  OptimizerWith(Session& session, torch::nn::Module& module,
                const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults)
      : Optimizer(session, module, groups, std::make_unique<Options>(std::move(defaults))) {}
};

using AdamW = OptimizerWith<torch::optim::AdamWOptions>;  // Decays every parameter, as LibTorch's.
using Adam = OptimizerWith<torch::optim::AdamOptions>;
using SGD = OptimizerWith<torch::optim::SGDOptions>;
using Lamb = OptimizerWith<LambOptions>;
using Lars = OptimizerWith<LarsOptions>;

// Writes the module's parameters and buffers, the optimizer's states and step counts, and the
// groups' options to one safetensors file. It writes tensor by tensor, so nothing is in memory
// twice. Parameters and floating-point buffers are written as fp32, so that resumed training gives
// the same bits. The file appears when it is complete. Throws if the disk refuses a write.
void Save(const Optimizer& optimizer, const std::string& path);
// Reads such a file into an optimizer of the same kind, whose module has the same tensors and
// groups. Throws if something does not match, with its name; nothing has changed then. Also throws
// if the file cannot be read; some tensors may then have new values.
void Load(Optimizer& optimizer, const std::string& path);

// Keeps all values of an optimizer's module in plain memory while this object exists, so that
// torch::save, torch::load and raw reads of the module work. When it is destroyed, changed values
// are written back to the session. No training step may run meanwhile.
class PlainMemory {
 public:
  // Throws if the module is in plain memory already, or if memory is short.
  explicit PlainMemory(Optimizer& optimizer);
  // Writes changed values back. If that fails, the session keeps the values that it had. LibTorch's
  // log of warnings says why, and Session::Check and the next step throw it.
  ~PlainMemory();
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

 private:
  struct Values;
  const std::unique_ptr<Values> values_;
};

}  // namespace gemini
