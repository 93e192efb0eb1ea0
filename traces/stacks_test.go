package traces_test

import (
	"testing"

	"allocsim/traces"
)

// TestUserFrames says of files as they stand in recordings whose they are.
func TestUserFrames(t *testing.T) {
	const user, installed, torch, native = "the user's", "a package's", "Python's or PyTorch's", "not Python"
	for _, c := range []struct{ file, whose string }{
		{"/home/me/torch/train.py", user},
		{"/home/me/train.py", user},
		{"train.py", user},
		{`C:\Users\me\train.py`, user},
		{"/home/me/python3-tricks/train.py", user},
		{"/home/me/lib/model.py", user},
		{"<ipython-input-1>", user},
		{"<ipython-input-1-0a1b2c3d4e5f>", user},
		{"<stdin>", user},
		{"/tmp/ipykernel_4711/1234567890.py", user},

		{"/usr/lib64/python3.11/contextlib.py", torch},
		{"/usr/lib/python3.10/threading.py", torch},
		{"/home/me/.pyenv/versions/3.12.1/lib/python3.12/runpy.py", torch},
		{`C:\Users\me\AppData\Local\Programs\Python\Python311\Lib\threading.py`, torch},
		{"<frozen importlib._bootstrap>", torch},
		{"/usr/lib64/python3.11/site-packages/torch/nn/modules/linear.py", torch},
		{"/opt/pytorch/torch/nn/functional.py", torch},
		{"/opt/pytorch/torch/_tensor.py", torch},

		{"/usr/lib/python3/dist-packages/numpy/core/numeric.py", installed},
		{"/opt/conda/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", installed},
		{`C:\venv\Lib\site-packages\timm\models\resnet.py`, installed},

		{"", native}, {"??", native}, {"<unknown>", native}, {"/build/aten/src/ATen/native/Linear.cpp", native},
	} {
		f := traces.Frame{Function: "f", File: c.file, Line: 1}
		got := torch
		switch {
		case !f.Python():
			got = native
		case f.User():
			got = user
		case f.Package():
			got = installed
		}
		if got != c.whose {
			t.Errorf("%s is %s, want %s", c.file, got, c.whose)
		}
	}
}
