package kernels

func embeddingBackward(_ *Device, o *Op) (p Plan) {
	ix, g := o.tensor("indices"), o.tensor("grad_output")
	if ix == nil || g == nil || len(g.Shape) == 0 {
		p.Results(len(o.Results))
		return p
	}
	return EmbeddingBackward(*ix, o.integer("num_weights", 1), g.Dim(-1), g.DType)
}

func index(_ *Device, o *Op) (p Plan)            { p.Results(len(o.Results)); return p }
func indexPut(_ *Device, o *Op) (p Plan)         { p.Results(len(o.Results)); return p }
func nonzero(_ *Device, o *Op) (p Plan)          { p.Results(len(o.Results)); return p }
func maskedSelect(_ *Device, o *Op) (p Plan)     { p.Results(len(o.Results)); return p }
func sorts(_ *Device, o *Op) (p Plan)            { p.Results(len(o.Results)); return p }
func topk(_ *Device, o *Op) (p Plan)             { p.Results(len(o.Results)); return p }
func scan(_ *Device, o *Op) (p Plan)             { p.Results(len(o.Results)); return p }
func randperm(_ *Device, o *Op) (p Plan)         { p.Results(len(o.Results)); return p }
func multinomial(_ *Device, o *Op) (p Plan)      { p.Results(len(o.Results)); return p }
func repeatInterleave(_ *Device, o *Op) (p Plan) { p.Results(len(o.Results)); return p }
func unique2(_ *Device, o *Op) (p Plan)          { p.Results(len(o.Results)); return p }
func bincount(_ *Device, o *Op) (p Plan)         { p.Results(len(o.Results)); return p }
func isin(_ *Device, o *Op) (p Plan)             { p.Results(len(o.Results)); return p }
func nms(_ *Device, o *Op) (p Plan)              { p.Results(len(o.Results)); return p }
func im2col(_ *Device, o *Op) (p Plan)           { p.Results(len(o.Results)); return p }

func foreachNorm(_ *Device, o *Op) (p Plan) {
	var most int64
	ts := o.Args["self"].Tensors
	for _, t := range ts {
		if t != nil {
			most = max(most, t.Numel())
		}
	}
	part := p.Scratch(NormPartials(len(ts), most))
	p.Results(len(o.Results))
	p.Drop(part)
	return p
}
