package conf

// Explanation is two lines about one option.
type Explanation struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Since   string `json:"since"`
	Until   string `json:"until,omitempty"`
	Does    string `json:"does"`
	Hurts   string `json:"hurts"`
}

// Explain says about each option that the string sets what it does and when
// it hurts, in the order of the string.
func (r Result) Explain() []Explanation {
	var es []Explanation
	for _, o := range r.Options {
		e := lookup(o.Key).Explain()
		e.Value = o.Value
		es = append(es, e)
	}
	return es
}

// Explain says what the option does and when it hurts.
func (k *Key) Explain() Explanation {
	e := Explanation{Key: k.Name, Type: string(k.Type), Default: k.Default, Since: k.Since.String(), Does: k.Does, Hurts: k.Hurts}
	if k.Until != (Version{}) {
		e.Until = k.Until.String()
	}
	return e
}
