// What a node needs where torch.compile compiles the backward pass: a call that its graph holds as it is.
#pragma once

#include <torch/csrc/dynamo/compiled_autograd.h>

#include "eager.hpp"

namespace fenchel {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;
using IValues = std::vector<c10::IValue>;

// The node's gradients as the graph's own values, which `run` computes from `args` when the graph runs.
template <class Run>
variable_list call_later(const Node& node, const variable_list& grads, SwapSavedVariables& saved,
                         const PackedArgs& args, Run run) {
  namespace compiled = torch::dynamo::autograd;
  std::vector<at::TypePtr> schema;
  for (const c10::IValue& value : args.vec())
    schema.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
  const auto shapes = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
      compiled::get_input_metadata(node.next_edges()));
  const auto& interface = compiled::getPyCompilerInterface();
  const std::string name = interface->bind_function(saved.get_py_compiler(), node.name(), run, schema,
                                                    /*is_custom_function*/ true, /*is_traceable*/ false);
  return interface->call_function(saved.get_py_compiler(), "apply_functional", name, grads, args.vec(), shapes);
}

}  // namespace fenchel
