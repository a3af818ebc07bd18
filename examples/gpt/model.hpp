// SPDX-License-Identifier: Apache-2.0
// A small GPT: embeddings, blocks of causal attention and MLP with the norm in front, and a head. Each part is a module
// of its own that is built from the shape alone and maps one tensor to one, so a strategy can cut the model between
// parts. Knows nothing of ranks.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace gpt {

struct Shape {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
};

/// A linear layer's output by way of at::linear: torch::nn::Linear::forward splits large inputs into a product and an
/// addition, and then rounds in another way than Python's nn.Linear does.
inline at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

class Embeddings : public torch::nn::Module {
 public:
  explicit Embeddings(const Shape& shape)
      : token_(register_module("token", torch::nn::Embedding(shape.vocabulary, shape.width))),
        position_(register_module("position", torch::nn::Embedding(shape.context, shape.width))) {}

  at::Tensor forward(const at::Tensor& tokens) {                             // [batch, time] of character numbers
    return token_(tokens) + position_->weight.narrow(0, 0, tokens.size(1));  // [batch, time, width]
  }

 private:
  torch::nn::Embedding token_;
  torch::nn::Embedding position_;
};

class Block : public torch::nn::Module {
 public:
  explicit Block(const Shape& shape)
      : heads_(shape.heads),
        attention_norm_(register_module("attention_norm", norm(shape))),
        query_key_value_(register_module("query_key_value", torch::nn::Linear(shape.width, 3 * shape.width))),
        projection_(register_module("projection", torch::nn::Linear(shape.width, shape.width))),
        mlp_norm_(register_module("mlp_norm", norm(shape))),
        widen_(register_module("widen", torch::nn::Linear(shape.width, 4 * shape.width))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * shape.width, shape.width))) {}

  at::Tensor forward(const at::Tensor& x) {  // [batch, time, width], in and out
    const at::Tensor attended = x + linear(projection_, attention(linear(query_key_value_, attention_norm_(x))));
    return attended + linear(narrow_, at::gelu(linear(widen_, mlp_norm_(attended))));
  }

 private:
  static torch::nn::LayerNorm norm(const Shape& shape) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width}));
  }

  at::Tensor attention(const at::Tensor& packed) const {  // [batch, time, 3 * width]
    const std::int64_t batch = packed.size(0), time = packed.size(1), width = packed.size(2) / 3;
    const auto parts = packed.view({batch, time, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape({batch, time, width});
  }

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear widen_;
  torch::nn::Linear narrow_;
};

class Head : public torch::nn::Module {
 public:
  explicit Head(const Shape& shape)
      : norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        logits_(register_module(
            "logits", torch::nn::Linear(torch::nn::LinearOptions(shape.width, shape.vocabulary).bias(false)))) {}

  at::Tensor forward(const at::Tensor& x) { return linear(logits_, norm_(x)); }  // [batch, time, vocabulary]

 private:
  torch::nn::LayerNorm norm_;
  torch::nn::Linear logits_;
};

class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const Shape& shape) : embeddings_(register_module("embeddings", std::make_shared<Embeddings>(shape))) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      blocks_.push_back(register_module("block" + std::to_string(layer), std::make_shared<Block>(shape)));
    }
    head_ = register_module("head", std::make_shared<Head>(shape));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = tokens;
    visit_units([&x](auto& unit) { x = unit.forward(x); });
    return x;
  }

  /// Calls f for each part in the order in which data runs through them: where a strategy may cut.
  template <class F>
  void visit_units(F f) {
    f(*embeddings_);
    for (const auto& block : blocks_) f(*block);
    f(*head_);
  }

 private:
  std::shared_ptr<Embeddings> embeddings_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<Head> head_;
};

/// Mean loss of a batch in nats per character.
inline at::Tensor loss(const at::Tensor& logits, const at::Tensor& next) {
  return at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

}  // namespace gpt
