package kernels

// gemm is a matrix product on cuBLAS. An operand that is neither row- nor
// column-major with one step of 1 is copied (native/cuda/Blas.cpp,
// prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas).
func gemm(operands ...string) rule {
	return func(d *Device, o *Op) (p Plan) {
		p.Results(len(o.Results))
		var copies []int
		for _, n := range operands {
			copies = append(copies, p.Scratch(matrixCopy(o.tensor(n))))
		}
		p.Library(GEMM, d.GEMMWorkspace)
		for i := len(copies) - 1; i >= 0; i-- {
			p.Drop(copies[i])
		}
		return p
	}
}

// matrixCopy is the bytes of the copy of a matrix (or batch of them) that cuBLAS
// cannot read as it is; else 0.
func matrixCopy(t *Tensor) int64 {
	if t == nil || len(t.Shape) < 2 {
		return 0
	}
	m, n := t.Dim(-2), t.Dim(-1)
	sm, sn := t.Stride[len(t.Stride)-2], t.Stride[len(t.Stride)-1]
	if sn == 1 && sm >= max(1, n) || sm == 1 && sn >= max(1, m) {
		return 0
	}
	if (m == 1 || n == 1) && (sm == 1 || sn == 1) {
		return 0
	}
	return t.Bytes()
}

// addmm runs on cuBLASLt, with the bias fused, when the bias is a vector of the
// result's width and both dimensions of the second matrix exceed 1
// (native/cuda/Blas.cpp, isInputCompliesAddmmCudaLt); else on cuBLAS.
func addmm(d *Device, o *Op) Plan {
	p := gemm("mat1", "mat2")(d, o)
	bias, m2 := o.tensor("self"), o.tensor("mat2")
	if o.Name == "aten::linear" {
		bias, m2 = o.tensor("bias"), o.tensor("weight")
	}
	if bias == nil || m2 == nil || len(m2.Shape) != 2 {
		return p
	}
	if len(bias.Shape) == 1 && bias.Contiguous() && bias.Numel() > 1 && m2.Shape[0] > 1 && m2.Shape[1] > 1 && bias.DType.Float() {
		p.Library(Lt, d.LtWorkspace)
	}
	return p
}

// ltOnly is a product that only cuBLASLt has.
func ltOnly(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	p.Library(GEMM, d.GEMMWorkspace)
	p.Library(Lt, d.LtWorkspace)
	return p
}
