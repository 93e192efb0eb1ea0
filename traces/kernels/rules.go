package kernels

// rules are the operations that take more than their results, or ask for them
// in another order than the schema's. A name without overload stands for all
// overloads that are not listed.
var rules map[string]rule

func init() {
	rules = map[string]rule{
		// Matrix products.
		"aten::mm": gemm("self", "mat2"), "aten::bmm": gemm("self", "mat2"),
		"aten::addmm": addmm, "aten::_addmm_activation": addmm,
		"aten::baddbmm": gemm("batch1", "batch2"), "aten::addbmm": gemm("batch1", "batch2"),
		"aten::mv": gemm("self"), "aten::addmv": gemm("mat"),
		"aten::dot": gemm(), "aten::vdot": gemm(),
		"aten::_int_mm": ltOnly, "aten::_scaled_mm": ltOnly, "aten::linear": addmm,

		// Reductions: bytes of a partial result by the type that is added up.
		"aten::sum": reduce(sumOf), "aten::mean": reduce(sumOf), "aten::nansum": reduce(sumOf), "aten::prod": reduce(sumOf),
		"aten::linalg_vector_norm": reduce(sumOf), "aten::norm": reduce(sumOf),
		"aten::amax": reduce(elementOf), "aten::amin": reduce(elementOf), "aten::max": maximum, "aten::min": maximum,
		"aten::any": reduce(boolOf), "aten::all": reduce(boolOf), "aten::count_nonzero": countNonzero,
		"aten::argmax": reduce(indexOf), "aten::argmin": reduce(indexOf),
		"aten::aminmax": reduce(pairOf), "aten::var": reduce(welfordOf), "aten::std": reduce(welfordOf),
		"aten::var_mean": reduce(welfordOf), "aten::std_mean": reduce(welfordOf),
		"aten::logsumexp": logsumexp,

		// Softmax, normalization, losses.
		"aten::_softmax": contiguousInput("self"), "aten::_log_softmax": contiguousInput("self"),
		"aten::_softmax_backward_data": softmaxBackward, "aten::_log_softmax_backward_data": contiguousInput("grad_output"),
		"aten::_safe_softmax":     safeSoftmax,
		"aten::native_layer_norm": layerNorm, "aten::native_layer_norm_backward": layerNormBackward,
		"aten::native_group_norm": groupNorm, "aten::native_group_norm_backward": groupNormBackward,
		"aten::native_batch_norm": nativeBatchNorm, "aten::native_batch_norm_backward": nativeBatchNormBackward,
		"aten::_native_batch_norm_legit": nativeBatchNorm,
		"aten::cudnn_batch_norm":         cudnnBatchNorm, "aten::cudnn_batch_norm_backward": cudnnBatchNormBackward,
		"aten::native_dropout":    resultsInOrder(1, 0),
		"aten::nll_loss_backward": lossBackward("grad_output"), "aten::nll_loss2d_forward": resultsInOrder(1, 0),
		"aten::mse_loss": lossReduction(true, false), "aten::smooth_l1_loss": lossReduction(true, false), "aten::huber_loss": lossReduction(false, false),
		"aten::binary_cross_entropy": lossReduction(true, true), "aten::binary_cross_entropy_with_logits": bceWithLogits,
		"aten::multi_margin_loss": multiMarginLoss,

		// Attention.
		"aten::_scaled_dot_product_cudnn_attention": cudnnAttention, "aten::_scaled_dot_product_cudnn_attention_backward": cudnnAttentionBackward,
		"aten::_scaled_dot_product_flash_attention": flashAttention, "aten::_scaled_dot_product_flash_attention_backward": flashAttentionBackward,
		"aten::_scaled_dot_product_efficient_attention": efficientAttention, "aten::_scaled_dot_product_efficient_attention_backward": efficientAttentionBackward,

		// Indexing, sorting, scanning.
		"aten::embedding": contiguousFirst("indices"), "aten::embedding_dense_backward": embeddingBackward,
		"aten::index": index, "aten::index_put": indexPut, "aten::index_put_": indexPut, "aten::_index_put_impl_": indexPut,
		"aten::nonzero": nonzero, "aten::masked_select": maskedSelect,
		"aten::sort": sorts, "aten::argsort": sorts, "aten::topk": topk,
		"aten::cumsum": scan, "aten::cumprod": scan, "aten::logcumsumexp": scan,
		"aten::roll": roll, "aten::randperm": randperm, "aten::multinomial": multinomial,
		"aten::repeat_interleave": repeatInterleave, "aten::_unique2": unique2, "aten::unique_consecutive": unique2,
		"aten::bincount": bincount, "aten::equal": equal, "aten::isin": isin,

		// Pooling and resampling: the gradient is made row-major.
		"aten::max_pool2d_with_indices_backward": contiguousGrad, "aten::max_pool3d_with_indices_backward": contiguousGrad,
		"aten::avg_pool2d_backward": contiguousGrad, "aten::avg_pool3d_backward": contiguousGrad,
		"aten::_adaptive_avg_pool2d_backward": contiguousGrad, "aten::_adaptive_avg_pool3d_backward": contiguousGrad,
		"aten::adaptive_max_pool2d_backward": contiguousGrad, "aten::adaptive_max_pool3d_backward": contiguousGrad,
		"aten::upsample_nearest1d_backward": contiguousGrad, "aten::upsample_nearest2d_backward": contiguousGrad, "aten::upsample_nearest3d_backward": contiguousGrad,
		"aten::_upsample_nearest_exact1d_backward": contiguousGrad, "aten::_upsample_nearest_exact2d_backward": contiguousGrad,
		"aten::upsample_linear1d_backward": contiguousGrad, "aten::upsample_bilinear2d_backward": contiguousGrad,
		"aten::upsample_bicubic2d_backward": contiguousGrad, "aten::upsample_trilinear3d_backward": contiguousGrad,
		"aten::_upsample_bilinear2d_aa_backward": contiguousGrad, "aten::_upsample_bicubic2d_aa_backward": contiguousGrad,

		// Convolutions and recurrent layers.
		"aten::convolution": convolution, "aten::_convolution": convolution, "aten::convolution_backward": convolutionBackward,
		"aten::cudnn_convolution": convolution, "aten::im2col": im2col,
		"aten::_cudnn_rnn": cudnnRNN, "aten::_cudnn_rnn_backward": cudnnRNNBackward,

		// Lists of tensors.
		"aten::_foreach_norm": foreachNorm,
		"torchvision::nms":    nms,
	}
}

// resultsInOrder is an operation that asks for its results in another order.
func resultsInOrder(order ...int) rule {
	return func(_ *Device, o *Op) (p Plan) {
		for _, n := range order {
			p.Result(n)
		}
		return p
	}
}

// contiguousInput is an operation whose kernel reads a row-major operand: a
// copy of another layout lives beside the results.
func contiguousInput(name string) rule {
	return func(_ *Device, o *Op) (p Plan) {
		p.Results(len(o.Results))
		p.Transient(copyOf(o.tensor(name)))
		return p
	}
}

// contiguousFirst is contiguousInput with the copy ahead of the results.
func contiguousFirst(name string) rule {
	return func(_ *Device, o *Op) (p Plan) {
		c := p.Scratch(copyOf(o.tensor(name)))
		p.Results(len(o.Results))
		p.Drop(c)
		return p
	}
}

// copyOf is the bytes of a row-major copy of t; 0 when t is row-major already.
func copyOf(t *Tensor) int64 {
	if t == nil || t.Host || t.Contiguous() {
		return 0
	}
	return t.Bytes()
}

// contiguousGrad is the backward of pooling and resampling. Layouts with the
// channels last stay as they are.
func contiguousGrad(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	if g := o.tensor("grad_output"); g != nil && !g.channelsLast() {
		p.Transient(copyOf(g))
	}
	return p
}

func equal(_ *Device, o *Op) (p Plan) {
	// The comparison, then the reduction of it to one value.
	t := o.tensor("self")
	if t == nil {
		return p
	}
	eq := p.Scratch(t.Numel())
	all := p.Scratch(1)
	p.Drop(all, eq)
	return p
}
