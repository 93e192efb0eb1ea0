package record

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces/formats"
)

// TestCards: the cards that a dry run can plan for are those of the catalogue,
// with its memory and number of multiprocessors.
func TestCards(t *testing.T) {
	_, table, found := strings.Cut(Script, "GPUS = \"\"\"\n")
	table, _, end := strings.Cut(table, "\"\"\"")
	if !found || !end {
		t.Fatal("no table of cards in the module")
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) < 50 {
		t.Fatalf("%d cards", len(lines))
	}
	for _, line := range lines {
		f := strings.Split(line, "|")
		if len(f) != 5 {
			t.Errorf("%q: not five fields", line)
			continue
		}
		card, err := gpus.Find(f[0])
		if err != nil {
			t.Errorf("%q: %v", f[0], err)
			continue
		}
		if card.Name != f[0] || strconv.FormatInt(card.Total, 10) != f[3] || strconv.Itoa(card.SMs) != f[2] {
			t.Errorf("%q: the catalogue says %s, %d bytes, %d multiprocessors", line, card.Name, card.Total, card.SMs)
		}
	}
}

// pythonWithTorch is an interpreter that has PyTorch; the test is skipped
// where there is none.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	python := os.Getenv("ALLOCSIM_TORCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	out, err := exec.Command(python, "-c", "import torch, numpy; print(torch.__version__)").CombinedOutput()
	if err != nil {
		if os.Getenv("ALLOCSIM_TORCH_PYTHON") != "" {
			t.Fatalf("ALLOCSIM_TORCH_PYTHON=%s cannot import torch: %s", python, out)
		}
		t.Skip("no PyTorch: `pip install torch numpy` somewhere and name its interpreter in ALLOCSIM_TORCH_PYTHON (.ci/run does)")
	}
	return python
}

// dryRun runs a program of testdata/programs under the module, without a GPU.
func dryRun(t *testing.T, python, dir string, args ...string) (out string, err error) {
	t.Helper()
	script, err := filepath.Abs(FileName)
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Abs("../../testdata/programs")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, append([]string{script, "--dry-run"}, args...)...)
	cmd.Dir = programs
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1", "RANK=", "WORLD_SIZE=")
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// truth is what a program of testdata/programs took on an H200.
type truth struct {
	Runs map[string]struct{ Allocated, Reserved, Requests int64 }
}

// TestDryRunAgainstH200 runs programs without a GPU and holds the recordings
// against what the same programs asked of a real H200's allocator: every
// storage that the dry run sees is a request of the real run, and after the
// kernels' own buffers the peaks agree.
func TestDryRunAgainstH200(t *testing.T) {
	python := pythonWithTorch(t)
	var real truth
	b, err := os.ReadFile("../../testdata/programs/real.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &real); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"muon_mlp", "dcgan", "reentrant_checkpoint", "pointnet_adam", "dlrm_adagrad", "transformer_encoder_fp32", "dit_amp", "diffusion_unet_amp",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			out, err := dryRun(t, python, dir, "--steps", "0", "-o", filepath.Join(dir, name), "programs.py", name)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			file := filepath.Join(dir, name+".dryrun")
			requests := realRequests(t, name)
			var storages, missing int
			for _, size := range dryStorages(t, file) {
				storages++
				if requests[size] == 0 {
					missing++
					continue
				}
				requests[size]--
			}
			if storages < 100 || float64(missing) > 0.002*float64(storages) {
				t.Errorf("%d of %d storages are no request of the real run", missing, storages)
			}
			allocated, reserved := replayed(t, file)
			near(t, "allocated", allocated, real.Runs[name].Allocated, 0.005)
			near(t, "reserved", reserved, real.Runs[name].Reserved, 0.05)
		})
	}
}

func near(t *testing.T, what string, got, want int64, tolerance float64) {
	t.Helper()
	if d := float64(got)/float64(want) - 1; d > tolerance || d < -tolerance {
		t.Errorf("%s peak %d, %+.2f %% off the real %d", what, got, 100*d, want)
	}
}

// realRequests counts the requests of a real run by bytes asked.
func realRequests(t *testing.T, name string) map[int64]int {
	t.Helper()
	f, err := os.Open("../../testdata/programs/requests/" + name + ".csv.zst")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[int64]int{}
	for _, r := range rows {
		if r[0] == "a" {
			size, err := strconv.ParseInt(r[2], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sizes[size]++
		}
	}
	return sizes
}

// dryStorages are the sizes of the storages that a dry run saw.
func dryStorages(t *testing.T, file string) (sizes []int64) {
	t.Helper()
	for _, line := range dryLines(t, file) {
		var op struct {
			New [][2]int64 `json:"new"`
		}
		if strings.HasPrefix(line, `{"op"`) && json.Unmarshal([]byte(line), &op) == nil {
			for _, n := range op.New {
				sizes = append(sizes, n[1])
			}
		}
	}
	return sizes
}

func dryLines(t *testing.T, file string) (lines []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<26)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// replayed are the peaks of a dry run under PyTorch's defaults.
func replayed(t *testing.T, file string) (allocated, reserved int64) {
	t.Helper()
	ctx := context.Background()
	rec, err := formats.Open(ctx, file, formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rec.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := planner.NewCase(ctx, tr, planner.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(ctx, c.Trace, c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return r.Stats.AllocatedBytes[policies.All].Peak, r.Stats.ReservedBytes[policies.All].Peak
}

// end is the trailer of a dry run.
type end struct {
	Complete       bool
	Error          string
	OptimizerSteps int `json:"optimizer_steps"`
	Assumptions    []struct {
		Kind, Value, File string
		Line, Count       int
	}
	Notes []string
}

func trailer(t *testing.T, file string) end {
	t.Helper()
	lines := dryLines(t, file)
	var last struct{ End end }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	return last.End
}

// TestDryRunAnswers: the planned card answers for itself, what depends on data
// is assumed and listed with its line, the run ends after --steps, and what
// cannot be done is refused by name and line.
func TestDryRunAnswers(t *testing.T) {
	python := pythonWithTorch(t)
	run := func(t *testing.T, program string, args ...string) (out, file string, err error) {
		dir := t.TempDir()
		path := filepath.Join(dir, "program.py")
		if err := os.WriteFile(path, []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(slices.Clone(args), "-o", filepath.Join(dir, "job"), path)
		out, err = dryRun(t, python, dir, args...)
		return out, filepath.Join(dir, "job.dryrun"), err
	}
	const loop = `
import torch
p = torch.cuda.get_device_properties(0)
print("CARD", p.name, p.total_memory, p.multi_processor_count, torch.cuda.get_device_capability(), torch.cuda.is_bf16_supported())
m = torch.nn.Linear(64, 64).cuda()
o = torch.optim.AdamW(m.parameters())
for i in range(100):
    x = torch.randn(8, 64, device="cuda")
    loss = m(x).pow(2).mean()
    kept = m(x)[m(x).sum(1) > 0]
    if torch.isnan(loss):
        raise SystemExit("nan")
    print("LOSS", f"{loss:.2f}", len(kept))
    o.zero_grad(); loss.backward(); o.step()
`
	t.Run("card", func(t *testing.T) {
		out, file, err := run(t, loop, "--gpu", "A100 80GB", "--steps", "2", "--assume", "nonzero=0.25", "--assume", "float=7")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{"CARD NVIDIA A100-SXM4-80GB 85093777408 108 (8, 0) True", "LOSS 7.00 2", "at " + filepath.Join(filepath.Dir(file), "program.py") + ":10"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		e := trailer(t, file)
		if !e.Complete || e.OptimizerSteps != 2 || len(e.Assumptions) == 0 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("refused", func(t *testing.T) {
		out, file, err := run(t, "import torch\nx = torch.ones(3, device='cuda')\ntorch.cuda.CUDAGraph()\n")
		if err == nil || !strings.Contains(out, "CUDA graphs cannot be dry-run") || !strings.Contains(out, "program.py:3") {
			t.Errorf("%v\n%s", err, out)
		}
		if e := trailer(t, file); e.Complete || e.Error == "" {
			t.Errorf("%+v", e)
		}
	})
	t.Run("host", func(t *testing.T) {
		out, file, err := run(t, "import torch\nm = torch.nn.Linear(256, 256)\nm(torch.ones(4, 256)).sum().backward()\nprint(float(torch.arange(5).sum()))\n")
		if err != nil || !strings.Contains(out, "10.0") {
			t.Errorf("%v\n%s", err, out)
		}
		if n := len(dryStorages(t, file)); n != 0 {
			t.Errorf("%d storages of host tensors were counted", n)
		}
	})
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{"--gpu", "H1000"}, {"--assume", "luck=1"}, {"--assume", "nms=x"}} {
			out, _, err := run(t, "pass\n", args...)
			if err == nil || strings.Contains(out, "Traceback") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
}
