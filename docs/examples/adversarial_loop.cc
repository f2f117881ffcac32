// SPDX-License-Identifier: Apache-2.0
// Two models that train against each other: a generator of points on a ring, and a critic that
// tells them from real ones. It trains, evaluates, saves, goes on, loads and goes on from there.
#include <gemini/gemini.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace F = torch::nn::functional;

struct PlayerImpl : torch::nn::Module {
  PlayerImpl(int64_t inputs, int64_t outputs)
      : first(inputs, 256), middle(256, 256), last(256, outputs) {
    register_module("first", first);
    register_module("middle", middle);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::leaky_relu(middle(torch::leaky_relu(first(x), 0.2)), 0.2));
  }
  torch::nn::Linear first, middle, last;
};
TORCH_MODULE(Player);

torch::Tensor Ring(int64_t count) {
  const torch::Tensor angle = torch::rand({count, 1}) * (2 * M_PI);
  return torch::cat({angle.cos(), angle.sin()}, 1) + 0.05 * torch::randn({count, 2});
}

torch::Tensor Judge(Player& critic, const torch::Tensor& points, bool real) {
  const torch::Tensor opinion = critic->forward(points);
  return F::binary_cross_entropy_with_logits(
      opinion, real ? torch::ones_like(opinion) : torch::zeros_like(opinion));
}

void Train(Player& generator, Player& critic, torch::optim::Optimizer& of_generator,
           torch::optim::Optimizer& of_critic, int steps) {
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor made = generator->forward(torch::randn({64, 8}));
    of_critic.zero_grad();
    (Judge(critic, Ring(64), true) + Judge(critic, made.detach(), false)).backward();
    of_critic.step();
    of_generator.zero_grad();
    Judge(critic, made, true).backward();
    of_generator.step();
  }
}

// How far made points are from the ring.
double Distance(Player& generator) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_gradient;
  return (generator->forward(torch::randn({512, 8})).norm(2, 1) - 1).abs().mean().item<double>();
}

template <typename Optimizer>
void SaveOrLoad(Player& player, Optimizer& optimizer, const std::string& file, bool saves) {
  const gemini::PlainMemory plain(optimizer);
  if (saves) {
    torch::save(player, file);
    torch::save(optimizer, file + ".optimizer");
  } else {
    torch::load(player, file);
    torch::load(optimizer, file + ".optimizer");
  }
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "adversarial_loop";
  torch::manual_seed(1);
  Player generator(8, 2), critic(2, 1);
  const auto options = torch::optim::AdamOptions(1e-3).betas(std::make_tuple(0.5, 0.999));
  gemini::Session session({.device_memory = "4MiB"});
  gemini::Adam of_generator(session, *generator, options);
  gemini::Adam of_critic(session, *critic, options);

  const double first = Distance(generator);
  Train(generator, critic, of_generator, of_critic, 200);
  const double saved = Distance(generator);
  SaveOrLoad(generator, of_generator, file + ".generator.pt", true);
  SaveOrLoad(critic, of_critic, file + ".critic.pt", true);
  Train(generator, critic, of_generator, of_critic, 20);
  SaveOrLoad(generator, of_generator, file + ".generator.pt", false);
  SaveOrLoad(critic, of_critic, file + ".critic.pt", false);
  const double loaded = Distance(generator);
  Train(generator, critic, of_generator, of_critic, 100);
  std::printf("distance %.3f at first, %.3f when saved, %.3f when loaded, %.3f at the end\n", first,
              saved, loaded, Distance(generator));
  return saved == loaded && saved < first ? 0 : 1;
}
