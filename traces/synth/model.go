package synth

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Model describes a network by its family and that family's sizes; fields of
// other families stay zero. It is what a YAML description holds.
type Model struct {
	// Name is shown in messages and notes.
	Name string `json:"name,omitempty"`
	// Family is one of bert, gpt2, llama, vit, resnet, mobilenet-v3.
	Family string `json:"family"`

	// Hidden is the width of the residual stream; a multiple of Heads.
	Hidden int64 `json:"hidden,omitempty"`
	// Layers is the number of transformer blocks.
	Layers int `json:"layers,omitempty"`
	// Heads is the number of attention (query) heads.
	Heads int64 `json:"heads,omitempty"`
	// KVHeads is the number of key and value heads (llama); Heads when 0.
	KVHeads int64 `json:"kv_heads,omitempty"`
	// HeadDim is the width of a head (llama); Hidden/Heads when 0.
	HeadDim int64 `json:"head_dim,omitempty"`
	// Intermediate is the width of the MLP; 4·Hidden when 0.
	Intermediate int64 `json:"intermediate,omitempty"`
	// Vocab is the number of token ids.
	Vocab int64 `json:"vocab,omitempty"`
	// Positions is the longest sequence.
	Positions int64 `json:"positions,omitempty"`
	// Types is the number of token types (bert); 2 when 0.
	Types int64 `json:"types,omitempty"`
	// Dropout is the dropout probability in training.
	Dropout float64 `json:"dropout,omitempty"`
	// Tied shares the head with the embedding (llama; bert and gpt2 always do).
	Tied bool `json:"tied,omitempty"`

	// Image is the side of the input images in pixels.
	Image int64 `json:"image,omitempty"`
	// Patch is the side of a patch in pixels (vit).
	Patch int64 `json:"patch,omitempty"`
	// Channels is the number of input channels; 3 when 0.
	Channels int64 `json:"channels,omitempty"`
	// Classes is the number of classes; 1000 when 0.
	Classes int64 `json:"classes,omitempty"`
	// Blocks is the number of blocks in each of the four stages (resnet).
	Blocks []int `json:"blocks,omitempty"`
	// Bottleneck chooses bottleneck blocks (ResNet-50 and larger).
	Bottleneck bool `json:"bottleneck,omitempty"`
	// Variant is large or small (mobilenet-v3).
	Variant string `json:"variant,omitempty"`
}

// ModelInfo describes a built-in model.
type ModelInfo struct {
	Name   string `json:"name"`
	Family string `json:"family"`
	// Params is the number of parameters.
	Params int64 `json:"params"`
	// What says what the model is, in one line.
	What string `json:"what"`
}

type builtin struct {
	what string
	m    Model
}

func bertModel(h int64, layers int, heads int64) Model {
	return Model{Family: "bert", Hidden: h, Layers: layers, Heads: heads, Intermediate: 4 * h, Vocab: 30522, Positions: 512, Types: 2, Dropout: 0.1}
}

func gpt2Model(h int64, layers int, heads int64) Model {
	return Model{Family: "gpt2", Hidden: h, Layers: layers, Heads: heads, Intermediate: 4 * h, Vocab: 50257, Positions: 1024, Dropout: 0.1}
}

func llamaModel(h int64, layers int, heads, kv, inter, vocab, pos int64) Model {
	return Model{Family: "llama", Hidden: h, Layers: layers, Heads: heads, KVHeads: kv, Intermediate: inter, Vocab: vocab, Positions: pos}
}

func vitModel(h int64, layers int, heads, patch int64) Model {
	return Model{Family: "vit", Hidden: h, Layers: layers, Heads: heads, Intermediate: 4 * h, Patch: patch, Image: 224, Classes: 1000}
}

func resnetModel(bottleneck bool, blocks ...int) Model {
	return Model{Family: "resnet", Blocks: blocks, Bottleneck: bottleneck, Image: 224, Classes: 1000}
}

var builtins = map[string]builtin{
	"resnet18":           {"ResNet-18 (torchvision)", resnetModel(false, 2, 2, 2, 2)},
	"resnet34":           {"ResNet-34 (torchvision)", resnetModel(false, 3, 4, 6, 3)},
	"resnet50":           {"ResNet-50 (torchvision)", resnetModel(true, 3, 4, 6, 3)},
	"resnet101":          {"ResNet-101 (torchvision)", resnetModel(true, 3, 4, 23, 3)},
	"resnet152":          {"ResNet-152 (torchvision)", resnetModel(true, 3, 8, 36, 3)},
	"mobilenet-v3-large": {"MobileNetV3-Large (torchvision)", Model{Family: "mobilenet-v3", Variant: "large", Image: 224, Classes: 1000, Dropout: 0.2}},
	"mobilenet-v3-small": {"MobileNetV3-Small (torchvision)", Model{Family: "mobilenet-v3", Variant: "small", Image: 224, Classes: 1000, Dropout: 0.2}},
	"vit-b-16":           {"ViT-B/16 (torchvision)", vitModel(768, 12, 12, 16)},
	"vit-b-32":           {"ViT-B/32 (torchvision)", vitModel(768, 12, 12, 32)},
	"vit-l-16":           {"ViT-L/16 (torchvision)", vitModel(1024, 24, 16, 16)},
	"vit-l-32":           {"ViT-L/32 (torchvision)", vitModel(1024, 24, 16, 32)},
	"bert-base":          {"BERT-base, masked-LM (transformers)", bertModel(768, 12, 12)},
	"bert-large":         {"BERT-large, masked-LM (transformers)", bertModel(1024, 24, 16)},
	"gpt2":               {"GPT-2 124M (transformers)", gpt2Model(768, 12, 12)},
	"gpt2-medium":        {"GPT-2 medium 355M (transformers)", gpt2Model(1024, 24, 16)},
	"gpt2-large":         {"GPT-2 large 774M (transformers)", gpt2Model(1280, 36, 20)},
	"gpt2-xl":            {"GPT-2 XL 1.6B (transformers)", gpt2Model(1600, 48, 25)},
	"gpt3-175b":          {"GPT-3 175B (as a GPT-2 of that size)", Model{Family: "gpt2", Hidden: 12288, Layers: 96, Heads: 96, Intermediate: 4 * 12288, Vocab: 50304, Positions: 2048, Dropout: 0.1}},
	"llama-7b":           {"Llama 2 7B (transformers)", llamaModel(4096, 32, 32, 32, 11008, 32000, 4096)},
	"llama-13b":          {"Llama 2 13B (transformers)", llamaModel(5120, 40, 40, 40, 13824, 32000, 4096)},
	"llama-70b":          {"Llama 2 70B (transformers)", llamaModel(8192, 80, 64, 8, 28672, 32000, 4096)},
	"llama3-8b":          {"Llama 3 8B (transformers)", llamaModel(4096, 32, 32, 8, 14336, 128256, 8192)},
	"llama3-70b":         {"Llama 3 70B (transformers)", llamaModel(8192, 80, 64, 8, 28672, 128256, 8192)},
}

// Models lists the built-in models by name.
func Models() []ModelInfo {
	infos := make([]ModelInfo, 0, len(builtins))
	for name, b := range builtins {
		infos = append(infos, ModelInfo{Name: name, Family: b.m.Family, Params: b.m.Params(), What: b.what})
	}
	slices.SortFunc(infos, func(a, b ModelInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

// families names each family and the YAML keys that belong to it.
var families = map[string][]string{
	"bert":         {"hidden", "layers", "heads", "intermediate", "vocab", "positions", "types", "dropout"},
	"gpt2":         {"hidden", "layers", "heads", "intermediate", "vocab", "positions", "dropout"},
	"llama":        {"hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "positions", "tied"},
	"vit":          {"hidden", "layers", "heads", "intermediate", "patch", "image", "channels", "classes", "dropout"},
	"resnet":       {"blocks", "bottleneck", "image", "channels", "classes"},
	"mobilenet-v3": {"variant", "image", "channels", "classes", "dropout"},
}

func familyNames() []string {
	names := make([]string, 0, len(families))
	for f := range families {
		names = append(names, f)
	}
	slices.Sort(names)
	return names
}

// Load returns a built-in model by name or reads a YAML description: a file
// whose name ends in .yaml or .yml or that exists, or the text itself when it
// has a line break. Unknown keys are errors that name the key.
func Load(nameOrYAML string) (Model, error) {
	if b, ok := builtins[strings.ToLower(nameOrYAML)]; ok {
		m := b.m
		m.Name = strings.ToLower(nameOrYAML)
		return m, nil
	}
	if strings.Contains(nameOrYAML, "\n") {
		return Parse([]byte(nameOrYAML))
	}
	const limit = 1 << 20
	info, err := os.Stat(nameOrYAML)
	if err == nil && info.Mode().IsRegular() {
		if info.Size() > limit {
			return Model{}, fmt.Errorf("model description %s: %d bytes; at most %d are read", nameOrYAML, info.Size(), limit)
		}
		text, err := os.ReadFile(nameOrYAML)
		if err != nil {
			return Model{}, fmt.Errorf("reading the model description: %w", err)
		}
		m, err := Parse(text)
		if err != nil {
			return Model{}, fmt.Errorf("model description %s: %w", nameOrYAML, err)
		}
		if m.Name == "" {
			m.Name = nameOrYAML
		}
		return m, nil
	}
	if l := strings.ToLower(nameOrYAML); strings.HasSuffix(l, ".yaml") || strings.HasSuffix(l, ".yml") {
		return Model{}, fmt.Errorf("reading the model description: %w", err)
	}
	names := make([]string, 0, len(builtins))
	for _, i := range Models() {
		names = append(names, i.Name)
	}
	return Model{}, fmt.Errorf("model %q is neither a built-in model nor a YAML file; built-in: %s", nameOrYAML, strings.Join(names, ", "))
}

// Parse reads a YAML description.
func Parse(text []byte) (Model, error) {
	var keys map[string]any
	if err := yaml.UnmarshalStrict(text, &keys); err != nil {
		return Model{}, notYAML(err)
	}
	if keys["family"] == nil {
		return Model{}, fmt.Errorf("no family is given; one of %s", strings.Join(familyNames(), ", "))
	}
	family, _ := keys["family"].(string)
	known, ok := families[family]
	if !ok {
		return Model{}, fmt.Errorf("family %q is not known; one of %s", fmt.Sprint(keys["family"]), strings.Join(familyNames(), ", "))
	}
	given := make([]string, 0, len(keys))
	for k := range keys {
		given = append(given, k)
	}
	slices.Sort(given)
	for _, k := range given {
		if k != "name" && k != "family" && !slices.Contains(known, k) {
			return Model{}, fmt.Errorf("unknown key %q for family %s; known: name, family, %s", k, family, strings.Join(known, ", "))
		}
	}
	var m Model
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		var bad *json.UnmarshalTypeError
		if errors.As(err, &bad) {
			return Model{}, fmt.Errorf("%s: a %s where %s belongs", bad.Field, bad.Value, kindName(bad.Type))
		}
		return Model{}, notYAML(err)
	}
	m.defaults()
	if m.Name == "" {
		m.Name = m.Family
	}
	return m, m.Validate()
}

// yamlLine finds the line and the reason in the words of the YAML parser.
var yamlLine = regexp.MustCompile(`line (\d+): ([^\n]+)`)

// notYAML is the error of a text of which the YAML parser says err. Of its words
// only the line and the reason concern the user: that YAML is turned into JSON
// on the way does not.
func notYAML(err error) error {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("line %s: %s; a model description is YAML", m[1], m[2])
	}
	if _, reason, ok := strings.Cut(err.Error(), "yaml: "); ok && !strings.Contains(reason, "\n") {
		return fmt.Errorf("%s; a model description is YAML", reason)
	}
	return errors.New("not a model description in YAML, which has lines such as family: gpt2 and layers: 12")
}

// kindName is what a value of a type is called in YAML.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	}
	return "text"
}

func (m *Model) defaults() {
	if m.Family == "bert" && m.Types == 0 {
		m.Types = 2
	}
	if m.Hidden > 0 && m.Intermediate == 0 {
		m.Intermediate = 4 * m.Hidden
	}
	if m.image() {
		if m.Classes == 0 {
			m.Classes = 1000
		}
		if m.Image == 0 {
			m.Image = 224
		}
	}
	if m.Family == "mobilenet-v3" && m.Variant == "" {
		m.Variant = "large"
	}
}

// image reports a model of images rather than tokens.
func (m Model) image() bool {
	return m.Family == "vit" || m.Family == "resnet" || m.Family == "mobilenet-v3"
}

// decoder reports a model that generates text.
func (m Model) decoder() bool { return m.Family == "gpt2" || m.Family == "llama" }

func (m Model) channels() int64 {
	if m.Channels == 0 {
		return 3
	}
	return m.Channels
}

func (m Model) kvHeads() int64 {
	if m.KVHeads == 0 {
		return m.Heads
	}
	return m.KVHeads
}

func (m Model) headDim() int64 {
	if m.HeadDim == 0 {
		return m.Hidden / m.Heads
	}
	return m.HeadDim
}

func (m Model) blockCount() int {
	switch m.Family {
	case "resnet":
		n := 0
		for _, b := range m.Blocks {
			n += b
		}
		return n
	case "mobilenet-v3":
		return len(mbConfs(m.Variant))
	}
	return m.Layers
}

// Limits of what a description may ask for; far above any real model.
const (
	maxWidth  = 1 << 20
	maxVocab  = 1 << 24
	maxLayers = 1 << 12
)

// Validate checks the sizes. The error names the key, its value and what is
// allowed.
func (m Model) Validate() error {
	if _, ok := families[m.Family]; !ok {
		return fmt.Errorf("family %q is not known; one of %s", m.Family, strings.Join(familyNames(), ", "))
	}
	inRange := func(key string, v, lo, hi int64) error {
		if v < lo || v > hi {
			return fmt.Errorf("%s %d: must be between %d and %d", key, v, lo, hi)
		}
		return nil
	}
	var errs []error
	check := func(key string, v, lo, hi int64) { errs = append(errs, inRange(key, v, lo, hi)) }
	if m.Dropout < 0 || m.Dropout >= 1 || m.Dropout != m.Dropout {
		return fmt.Errorf("dropout %v: must be at least 0 and below 1", m.Dropout)
	}
	if !m.image() || m.Family == "vit" {
		check("hidden", m.Hidden, 1, maxWidth)
		check("layers", int64(m.Layers), 1, maxLayers)
		check("heads", m.Heads, 1, maxWidth)
		check("intermediate", m.Intermediate, 1, 16*maxWidth)
	}
	if !m.image() {
		check("vocab", m.Vocab, 2, maxVocab)
		check("positions", m.Positions, 1, maxVocab)
	}
	if m.image() {
		check("image", m.Image, 32, 1<<14)
		check("channels", m.channels(), 1, 1024)
		check("classes", m.Classes, 2, maxVocab)
	}
	if m.Family == "vit" {
		check("patch", m.Patch, 1, m.Image)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	switch m.Family {
	case "resnet":
		if len(m.Blocks) != 4 {
			return fmt.Errorf("blocks %v: a ResNet has four stages, such as [3, 4, 6, 3]", m.Blocks)
		}
		for _, b := range m.Blocks {
			if b < 1 || b > maxLayers {
				return fmt.Errorf("blocks %v: each stage has between 1 and %d blocks", m.Blocks, maxLayers)
			}
		}
	case "mobilenet-v3":
		if m.Variant != "large" && m.Variant != "small" {
			return fmt.Errorf("variant %q: must be large or small", m.Variant)
		}
	default:
		if m.HeadDim == 0 && m.Hidden%m.Heads != 0 {
			return fmt.Errorf("hidden %d is not a multiple of heads %d", m.Hidden, m.Heads)
		}
		if m.Heads%m.kvHeads() != 0 {
			return fmt.Errorf("heads %d is not a multiple of kv_heads %d", m.Heads, m.kvHeads())
		}
		if m.Family == "llama" {
			if err := inRange("head_dim", m.headDim(), 2, maxWidth); err != nil {
				return err
			}
			if m.headDim()%2 != 0 {
				return fmt.Errorf("head_dim %d: must be even for rotary positions", m.headDim())
			}
		}
		if m.Family == "vit" && m.Image%m.Patch != 0 {
			return fmt.Errorf("image %d is not a multiple of patch %d", m.Image, m.Patch)
		}
	}
	return nil
}

// Params is the number of parameters; tied weights count once.
func (m Model) Params() int64 {
	conv := func(in, out, k, groups int64) int64 { return in / groups * out * k * k }
	switch m.Family {
	case "bert":
		h, i := m.Hidden, m.Intermediate
		layer := 4*(h*h+h) + 2*2*h + h*i + i + i*h + h
		return (m.Vocab+m.Positions+m.Types)*h + 2*h + int64(m.Layers)*layer + h*h + h + 2*h + m.Vocab
	case "gpt2":
		h, i := m.Hidden, m.Intermediate
		layer := h*3*h + 3*h + h*h + h + 4*h + h*i + i + i*h + h
		return (m.Vocab+m.Positions)*h + int64(m.Layers)*layer + 2*h
	case "llama":
		h, i, d := m.Hidden, m.Intermediate, m.headDim()
		layer := 2*h*m.Heads*d + 2*h*m.kvHeads()*d + 3*h*i + 2*h
		n := m.Vocab*h + int64(m.Layers)*layer + h
		if !m.Tied {
			n += m.Vocab * h
		}
		return n
	case "vit":
		h, i := m.Hidden, m.Intermediate
		seq := (m.Image/m.Patch)*(m.Image/m.Patch) + 1
		layer := 4*h + 3*h*h + 3*h + h*h + h + h*i + i + i*h + h
		return m.channels()*m.Patch*m.Patch*h + h + h + seq*h + int64(m.Layers)*layer + 2*h + h*m.Classes + m.Classes
	case "resnet":
		n := conv(m.channels(), 64, 7, 1) + 2*64
		in := int64(64)
		for s, count := range m.Blocks {
			p := int64(64) << s
			out := p
			if m.Bottleneck {
				out = 4 * p
			}
			for i := range count {
				if m.Bottleneck {
					n += conv(in, p, 1, 1) + conv(p, p, 3, 1) + conv(p, out, 1, 1) + 2*(p+p+out)
				} else {
					n += conv(in, p, 3, 1) + conv(p, p, 3, 1) + 4*p
				}
				if (s > 0 && i == 0) || in != out {
					n += conv(in, out, 1, 1) + 2*out
				}
				in = out
			}
		}
		return n + in*m.Classes + m.Classes
	case "mobilenet-v3":
		n := conv(m.channels(), 16, 3, 1) + 32
		cs := mbConfs(m.Variant)
		for _, c := range cs {
			if c.exp != c.in {
				n += c.in*c.exp + 2*c.exp
			}
			n += c.exp*c.k*c.k + 2*c.exp
			if c.se {
				sq := divisible8(c.exp / 4)
				n += 2*c.exp*sq + sq + c.exp
			}
			n += c.exp*c.out + 2*c.out
		}
		last := cs[len(cs)-1].out
		mid := int64(1280)
		if m.Variant == "small" {
			mid = 1024
		}
		return n + last*6*last + 2*6*last + 6*last*mid + mid + mid*m.Classes + m.Classes
	}
	return 0
}
