// sparse.h: sparse tensors. The engine knows the plain tensors that one is made of. What else there
// is to it is kept by value, and the tensor is made again from both.
//
// Upstream contract: ATen/SparseTensorImpl.h, ATen/SparseCsrTensorImpl.h: these members are all that
// such a tensor has beside what any tensor has.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace dtr_bridge {

// Calls visit(part) for each tensor that a sparse one is made of, in order. false: it is not sparse.
template <typename Visit>
bool for_components(const at::Tensor& tensor, Visit&& visit) {
  if (C10_LIKELY(tensor.layout() == c10::kStrided)) return false;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (auto* coo = dynamic_cast<at::SparseTensorImpl*>(impl)) {
    visit(coo->indices());
    visit(coo->values());
    return true;
  }
  if (auto* compressed = dynamic_cast<at::SparseCsrTensorImpl*>(impl)) {
    visit(compressed->compressed_indices());
    visit(compressed->plain_indices());
    visit(compressed->values());
    return true;
  }
  return false;
}

// The same, or with the tensor itself if it is not sparse.
template <typename Visit>
void for_parts(const at::Tensor& tensor, Visit&& visit) {
  if (!for_components(tensor, visit)) visit(tensor);
}

inline bool is_sparse(const at::Tensor& tensor) {
  return for_components(tensor, [](const at::Tensor&) {});
}

// A sparse tensor without what it is made of.
class SparseShape final : public torch::CustomClassHolder {
 public:
  explicit SparseShape(const at::Tensor& tensor)
      : keys_(tensor.key_set()),
        layout_(tensor.layout()),
        device_(tensor.device()),
        type_(tensor.dtype()),
        sizes_(tensor.sizes().vec()) {
    if (const auto* coo = dynamic_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())) {
      sparse_dim_ = coo->sparse_dim();
      dense_dim_ = coo->dense_dim();
      is_coalesced_ = coo->coalesced();
    }
  }

  // parts: the tensors that it was made of, or others like them, the first of many.
  at::Tensor over(std::vector<at::Tensor>::const_iterator& parts) const {
    const at::Tensor& first = *parts++;
    const at::Tensor& second = *parts++;
    if (layout_ == c10::kSparse) {
      at::Tensor made = at::detail::make_tensor<at::SparseTensorImpl>(keys_, type_);
      auto* impl = static_cast<at::SparseTensorImpl*>(made.unsafeGetTensorImpl());
      impl->raw_resize_(sparse_dim_, dense_dim_, sizes_);
      impl->set_indices_and_values_unsafe(first, second);
      impl->set_coalesced(is_coalesced_);
      return made;
    }
    at::Tensor made =
        at::detail::make_tensor<at::SparseCsrTensorImpl>(keys_, device_, layout_, type_);
    static_cast<at::SparseCsrTensorImpl*>(made.unsafeGetTensorImpl())
        ->set_member_tensors(first, second, *parts++, c10::IntArrayRef(sizes_));
    return made;
  }

 private:
  c10::DispatchKeySet keys_;
  c10::Layout layout_;
  c10::Device device_;
  caffe2::TypeMeta type_;
  std::vector<int64_t> sizes_;
  int64_t sparse_dim_ = 0;
  int64_t dense_dim_ = 0;
  bool is_coalesced_ = false;
};

}  // namespace dtr_bridge
