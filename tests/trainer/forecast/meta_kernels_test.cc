// SPDX-License-Identifier: Apache-2.0
// Each operator on the meta device against itself on the CPU, from which it must not be told apart
// by the sizes, strides, types and bytes of what it makes.
#include "trainer/forecast/meta_kernels.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/Allocator.h"
#include "gtest/gtest.h"
#include "trainer/forecast/meta_memory.h"

namespace gemini::trainer {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;
using Tensors = std::vector<Tensor>;

// A way to lie in memory. `make` takes three sizes or more.
struct Layout {
  const char* name;
  Tensor (*make)(Sizes sizes, at::ScalarType type);
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

Tensor Contiguous(Sizes sizes, at::ScalarType type) { return at::ones(sizes, type); }

// As heads are when a row of all heads is viewed by head.
Tensor Transposed(Sizes sizes, at::ScalarType type) {
  std::swap(sizes[sizes.size() - 3], sizes[sizes.size() - 2]);
  return at::ones(sizes, type).transpose(-3, -2);
}

// As keys are that lie between their queries and values.
Tensor Split(Sizes sizes, at::ScalarType type) {
  const int64_t width = sizes.back();
  sizes.back() = 3 * width;
  return at::ones(sizes, type).narrow(-1, width, width);
}

Tensor EverySecondRow(Sizes sizes, at::ScalarType type) {
  sizes[sizes.size() - 2] *= 2;
  return at::ones(sizes, type).slice(-2, 0, std::nullopt, 2);
}

Tensor Expanded(Sizes sizes, at::ScalarType type) {
  Sizes one = sizes;
  one.front() = 1;
  return at::ones(one, type).expand(sizes);
}

constexpr Layout kLayouts[] = {{"contiguous", &Contiguous},
                               {"transposed", &Transposed},
                               {"split", &Split},
                               {"every_second_row", &EverySecondRow},
                               {"expanded", &Expanded}};

const Sizes kSizes[] = {{2, 4, 3, 8}, {1, 1, 3, 8}, {2, 1, 5, 1}, {3, 5, 8}, {2, 0, 3, 8}};

template <typename Tuple>
Tensors ListOf(const Tuple& results) {
  return std::apply([](const auto&... result) { return Tensors{result...}; }, results);
}

Tensor OnMeta(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Expects that `call` makes the same of `inputs`, which are on the CPU, and of their like on the
// meta device.
void ExpectAlike(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& call) {
  Tensors meta_inputs;
  std::string trace = "inputs:";
  for (const Tensor& input : inputs) {
    meta_inputs.push_back(OnMeta(input));
    absl::StrAppend(&trace, input.defined()
                                ? absl::StrCat(" [", absl::StrJoin(input.sizes(), ", "), "] by (",
                                               absl::StrJoin(input.strides(), ", "), ")")
                                : " none");
  }
  SCOPED_TRACE(trace);
  const Tensors expected = call(inputs);
  const Tensors made = call(meta_inputs);
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("result ", i));
    ASSERT_EQ(made[i].defined(), expected[i].defined());
    if (!made[i].defined()) continue;
    EXPECT_TRUE(made[i].is_meta());
    EXPECT_EQ(made[i].sizes(), expected[i].sizes());
    EXPECT_EQ(made[i].strides(), expected[i].strides());
    EXPECT_EQ(made[i].scalar_type(), expected[i].scalar_type());
    EXPECT_EQ(made[i].storage().nbytes(), expected[i].storage().nbytes());
  }
}

class MetaKernelsTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, Layout>> {
 protected:
  MetaKernelsTest() {
    at::set_num_threads(1);
    RegisterMetaKernels();
  }

  static at::ScalarType type() { return std::get<0>(GetParam()); }
  static Tensor Make(const Sizes& sizes) { return Make(sizes, type()); }
  static Tensor Make(const Sizes& sizes, at::ScalarType of) {
    return std::get<1>(GetParam()).make(sizes, of);
  }

  const at::NoGradGuard no_grad_;
};

INSTANTIATE_TEST_SUITE_P(TypesAndLayouts, MetaKernelsTest,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::ValuesIn(kLayouts)),
                         [](const auto& at) {
                           return absl::StrCat(c10::toString(std::get<0>(at.param)), "_",
                                               std::get<1>(at.param).name);
                         });

TEST_P(MetaKernelsTest, ReluMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    ExpectAlike({Make(sizes)}, [](const Tensors& in) { return Tensors{at::relu(in[0])}; });
  }
}

TEST_P(MetaKernelsTest, AbsMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    ExpectAlike({Make(sizes)}, [](const Tensors& in) {
      return Tensors{at::abs(in[0]), at::isinf(in[0])};
    });
  }
}

TEST_P(MetaKernelsTest, FloorDivideMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    for (const at::ScalarType of : {at::kLong, at::kInt, type()}) {
      ExpectAlike({Make(sizes, of)},
                  [](const Tensors& in) { return Tensors{at::floor_divide(in[0], 3)}; });
      const auto divide = [](const Tensors& in) { return Tensors{at::floor_divide(in[0], in[1])}; };
      ExpectAlike({Make(sizes, of), at::ones({}, of)}, divide);
      ExpectAlike({Make(sizes, at::kInt), Make(sizes, of)}, divide);
      ExpectAlike({at::ones({1}, of), Make(sizes, of)}, divide);
    }
  }
}

TEST_P(MetaKernelsTest, WhereMakesWhatTheCpuMakes) {
  const auto where = [](const Tensors& in) { return Tensors{at::where(in[0], in[1], in[2])}; };
  for (const Sizes& sizes : kSizes) {
    const Tensor mask = at::ones({sizes[sizes.size() - 2], sizes.back()}, at::kBool);
    ExpectAlike({Make(sizes, at::kBool), Make(sizes), Make(sizes)}, where);
    ExpectAlike({mask, Make(sizes), Make(sizes)}, where);
    ExpectAlike({mask, Make(sizes), at::ones({}, type())}, where);
    ExpectAlike({mask, at::ones({}, type()), Make(sizes)}, where);
    ExpectAlike({mask, Make(sizes), Make(sizes, at::kFloat)}, where);
    ExpectAlike({Make(sizes, at::kBool), at::ones({1}, type()), at::ones({1}, at::kFloat)}, where);
    ExpectAlike({mask, Make(sizes)},
                [](const Tensors& in) { return Tensors{at::where(in[0], in[1], -1e9)}; });
    ExpectAlike({mask, Make(sizes)},
                [](const Tensors& in) { return Tensors{at::where(in[0], 0.0, in[1])}; });
  }
}

TEST_P(MetaKernelsTest, WhereLeavesItsOutputAsTheCpuDoes) {
  const auto where = [](const Tensors& in) {
    Tensor out = in[3];
    return Tensors{at::where_out(out, in[0], in[1], in[2]), out};
  };
  for (const Sizes& sizes : kSizes) {
    const Tensor condition = Make(sizes, at::kBool);
    const Tensor out = at::empty(sizes, type());
    ExpectAlike({condition, Make(sizes), Make(sizes), out}, where);
    ExpectAlike({condition, Make(sizes), Make(sizes), at::empty_like(Make(sizes))}, where);
    ExpectAlike({condition, Make(sizes), Make(sizes), at::empty({0}, type())}, where);
  }
}

TEST_P(MetaKernelsTest, IndexSelectMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    for (int64_t dim = -1; dim < static_cast<int64_t>(sizes.size()); ++dim) {
      if (Make(sizes).size(dim) == 0) continue;
      for (const int64_t rows : {0, 1, 7}) {
        ExpectAlike({Make(sizes), at::zeros({rows}, at::kLong)}, [dim](const Tensors& in) {
          return Tensors{at::index_select(in[0], dim, in[1])};
        });
      }
    }
  }
  ExpectAlike({at::ones({}, type()), at::zeros({1}, at::kLong)},
              [](const Tensors& in) { return Tensors{at::index_select(in[0], 0, in[1])}; });
}

TEST_P(MetaKernelsTest, BincountMakesWhatTheCpuMakes) {
  for (const at::ScalarType of : {at::kLong, at::kInt}) {
    for (const int64_t count : {0, 1, 9}) {
      ExpectAlike({at::ones({count}, of)}, [](const Tensors& in) {
        return Tensors{at::bincount(in[0], /*weights=*/{}, /*minlength=*/5)};
      });
    }
  }
}

TEST_P(MetaKernelsTest, EmbeddingBackwardMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    const Tensor rows = at::zeros(Sizes(sizes.begin(), sizes.end() - 1), at::kLong);
    for (const int64_t padding : {-1, 0}) {
      ExpectAlike({Make(sizes), rows}, [padding](const Tensors& in) {
        return Tensors{at::embedding_dense_backward(in[0], in[1], /*num_weights=*/11, padding,
                                                    /*scale_grad_by_freq=*/false)};
      });
    }
  }
}

// Which parameters a norm has, and of what type.
struct Parameters {
  bool weight;
  bool bias;
  bool in_fp32 = false;
};
constexpr Parameters kParameters[] = {{false, false},    {true, false},       {false, true},
                                      {true, true},      {true, false, true}, {false, true, true},
                                      {true, true, true}};

// Returns the input, the weight and the bias of a norm over the last `num_dims` sizes.
Tensors NormInputs(const Tensor& input, size_t num_dims, const Parameters& has) {
  const at::ScalarType type = has.in_fp32 ? at::kFloat : input.scalar_type();
  const at::IntArrayRef shape = input.sizes().slice(static_cast<size_t>(input.dim()) - num_dims);
  return {input, has.weight ? at::ones(shape, type) : Tensor(),
          has.bias ? at::ones(shape, type) : Tensor()};
}

TEST_P(MetaKernelsTest, LayerNormMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    for (const size_t num_dims : {1, 2}) {
      for (const Parameters& has : kParameters) {
        ExpectAlike(NormInputs(Make(sizes), num_dims, has), [&](const Tensors& in) {
          const auto shape = in[0].sizes().slice(sizes.size() - num_dims);
          return ListOf(at::native_layer_norm(in[0], shape, in[1], in[2], 1e-5));
        });
      }
    }
  }
}

TEST_P(MetaKernelsTest, LayerNormBackwardMakesWhatTheCpuMakes) {
  for (const Sizes& sizes : kSizes) {
    for (const Parameters& has : kParameters) {
      // A CPU refuses a bias of another type where there is no weight.
      if (has.in_fp32 && !has.weight) continue;
      for (int mask = 0; mask < 8; ++mask) {
        const std::array<bool, 3> wanted = {(mask & 1) != 0, (mask & 2) != 0 && has.weight,
                                            (mask & 4) != 0 && has.bias};
        Tensors inputs = NormInputs(Make(sizes), 1, has);
        inputs.push_back(Make(sizes));
        ExpectAlike(inputs, [&](const Tensors& in) {
          const auto shape = in[0].sizes().slice(sizes.size() - 1);
          const auto [out, mean, deviation] =
              at::native_layer_norm(in[0], shape, in[1], in[2], 1e-5);
          return ListOf(at::native_layer_norm_backward(in[3], in[0], shape, mean, deviation, in[1],
                                                       in[2], wanted));
        });
      }
    }
  }
}

// Sizes of one attention; its heads have eight columns.
struct Attention {
  int64_t batch, heads, key_heads, rows, keys;
  bool is_causal;
};
constexpr Attention kAttentions[] = {{2, 4, 4, 5, 5, true},
                                     {2, 4, 2, 5, 5, true},
                                     {1, 3, 1, 70, 70, true},
                                     {1, 1, 1, 1, 6, false},
                                     {3, 2, 2, 4, 9, false}};

// Query, key and value.
Tensors AttentionInputs(const Attention& of, Tensor (*make)(const Sizes& sizes)) {
  return {make({of.batch, of.heads, of.rows, 8}), make({of.batch, of.key_heads, of.keys, 8}),
          make({of.batch, of.key_heads, of.keys, 8})};
}

TEST_P(MetaKernelsTest, AttentionMakesWhatTheCpuMakes) {
  for (const Attention& of : kAttentions) {
    ExpectAlike(AttentionInputs(of, &Make), [&](const Tensors& in) {
      return ListOf(
          at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, of.is_causal));
    });
  }
}

TEST_P(MetaKernelsTest, AttentionWithAMaskMakesWhatTheCpuMakes) {
  for (const Attention& of : kAttentions) {
    Tensors inputs = AttentionInputs(of, &Make);
    inputs.push_back(at::ones({of.rows, of.keys}, type()));
    ExpectAlike(inputs, [&](const Tensors& in) {
      return ListOf(at::_scaled_dot_product_flash_attention_for_cpu(
          in[0], in[1], in[2], 0.0, /*is_causal=*/false, in[3], /*scale=*/0.5));
    });
  }
}

TEST_P(MetaKernelsTest, AttentionBackwardMakesWhatTheCpuMakes) {
  for (const Attention& of : kAttentions) {
    Tensors inputs = AttentionInputs(of, &Make);
    inputs.push_back(Make(inputs[0].sizes().vec()));
    ExpectAlike(inputs, [&](const Tensors& in) {
      const auto [out, sums] =
          at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, of.is_causal);
      return ListOf(at::_scaled_dot_product_flash_attention_for_cpu_backward(
          in[3], in[0], in[1], in[2], out, sums, 0.0, of.is_causal));
    });
  }
}

// Stands in for Torch's CPU allocator while it lives, and counts the most that it had given out at
// one time.
class PeakOfCpu final : public c10::Allocator {
 public:
  PeakOfCpu() : before_(c10::GetAllocator(c10::DeviceType::CPU)) { Install(this); }
  ~PeakOfCpu() override { Install(before_); }

  c10::DataPtr allocate(size_t size_bytes) override {
    const auto size = static_cast<int64_t>(size_bytes);
    const int64_t live = live_ += size;
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
    auto* const block = static_cast<std::byte*>(std::aligned_alloc(
        kAlignment, kAlignment + (size_bytes + kAlignment - 1) / kAlignment * kAlignment));
    new (block) Header{size, this};
    void* const bytes = block + kAlignment;
    return {bytes, bytes, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  int64_t peak_bytes() const { return peak_; }

 private:
  struct Header {  // Before the bytes of each block.
    int64_t size_bytes;
    PeakOfCpu* owner;
  };
  static constexpr size_t kAlignment = 64;

  static void Install(c10::Allocator* allocator) {
    c10::SetAllocator(c10::DeviceType::CPU, allocator, /*priority=*/255);
  }
  static void Free(void* bytes) {
    auto* const block = static_cast<std::byte*>(bytes) - kAlignment;
    const Header header = *reinterpret_cast<Header*>(block);
    header.owner->live_ -= header.size_bytes;
    std::free(block);
  }

  c10::Allocator* const before_;
  std::atomic<int64_t> live_ = 0;
  std::atomic<int64_t> peak_ = 0;
};

// On both sides of the rows at which the tiles change.
TEST_P(MetaKernelsTest, AttentionTakesAsMuchMemoryAsOnTheCpu) {
  const int before = at::get_num_threads();
  RegisterMetaKernels();
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const int64_t rows : {20, 191, 192, 600, 767, 768}) {
      for (const bool is_backward : {false, true}) {
        const auto run = [&](at::Device device) {
          const auto options = at::dtype(type()).device(device);
          const auto make = [&] { return at::zeros({2, 3, rows, 8}, options); };
          const Tensor query = make(), key = make(), value = make(), grad = make();
          const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
              query, key, value, 0.0, /*is_causal=*/false);
          if (!is_backward) return;
          at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, out,
                                                                   sums, 0.0, /*is_causal=*/false);
        };
        int64_t on_cpu = 0, on_meta = 0;
        {
          const PeakOfCpu peak;
          run(at::kCPU);
          on_cpu = peak.peak_bytes();
        }
        {
          const MetaMemory memory(/*grain_bytes=*/1);
          run(at::kMeta);
          on_meta = memory.peak_bytes();
        }
        // In backward each thread that works has sums of rows of its own, and in 16 bits what
        // oneDNN copies of the matrices, which is not foretold.
        const int64_t of_threads = is_backward ? threads * 256 * 8 : 0;
        const bool copies = is_backward && at::elementSize(type()) == 2;
        EXPECT_LE(on_meta, on_cpu + of_threads)
            << rows << " rows, " << threads << " threads, backward " << is_backward;
        EXPECT_GE(on_meta, (copies ? on_cpu * 2 / 3 : on_cpu) - of_threads)
            << rows << " rows, " << threads << " threads, backward " << is_backward;
      }
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace gemini::trainer
