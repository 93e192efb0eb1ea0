package pickle

// Value is a decoded value in 8 bytes: the low bits hold its kind, the rest a
// number or an index. The zero Value is no value at all.
type Value uint64

type tag uint64

const (
	tagUnset tag = iota
	tagNone
	tagBool
	tagInt    // 60-bit signed
	tagBigInt // index into Decoder.big
	tagFloat  // index into Decoder.floats
	tagString // string id
	tagOpaque // something whose content is not kept
	tagRecord // the handler's number
	tagOpen   // index into Decoder.open: a container under construction

	tagBits = 4
	tagMask = 1<<tagBits - 1
)

// MaxRecord is the largest number that [Record] takes.
const MaxRecord = 1<<(64-tagBits) - 1

// Opaque is a value whose content is not kept: bytes, and whatever a [Handler]
// has no use for.
const Opaque = Value(tagOpaque)

// None is Python's None.
const None = Value(tagNone)

func pack(t tag, n uint64) Value { return Value(n<<tagBits | uint64(t)) }

func (v Value) tag() tag    { return tag(v & tagMask) }
func (v Value) num() uint64 { return uint64(v) >> tagBits }

// Record makes a value that stands for something the handler has stored under
// number n ≤ [MaxRecord].
func Record(n uint64) Value { return pack(tagRecord, n) }

// Record is the number given to [Record]; false for every other value.
func (v Value) Record() (uint64, bool) { return v.num(), v.tag() == tagRecord }

// IsNone reports Python's None.
func (v Value) IsNone() bool { return v.tag() == tagNone }

// Bool is the value of a Python bool.
func (v Value) Bool() (value, ok bool) { return v.num() != 0, v.tag() == tagBool }

// StringID is the id of a string: equal strings have equal ids, and the known
// strings given to [NewDecoder] are numbered from 0 in their order.
func (v Value) StringID() (uint32, bool) { return uint32(v.num()), v.tag() == tagString }

var tagNames = [...]string{"nothing", "None", "a bool", "an integer", "an integer", "a float", "a string", "an unsupported value", "a container", "an unfinished container"}

// Kind names the kind of value for messages: "an integer", "a string", ….
func (v Value) Kind() string {
	if t := v.tag(); int(t) < len(tagNames) {
		return tagNames[t]
	}
	return "an unsupported value"
}

// intValue packs an integer; those of more than 60 bits go to a side table.
func (d *Decoder) intValue(n int64) Value {
	if n<<tagBits>>tagBits == n {
		return Value(uint64(n)<<tagBits | uint64(tagInt))
	}
	d.big = append(d.big, n)
	return pack(tagBigInt, uint64(len(d.big)-1))
}

// Int is the value of an integer that fits in 64 bits; false for every other
// value.
func (d *Decoder) Int(v Value) (int64, bool) {
	switch v.tag() {
	case tagInt:
		return int64(v) >> tagBits, true
	case tagBigInt:
		return d.big[v.num()], true
	}
	return 0, false
}

// Float is the value of a Python float; false for every other value.
func (d *Decoder) Float(v Value) (float64, bool) {
	if v.tag() != tagFloat {
		return 0, false
	}
	return d.floats[v.num()], true
}

// String is the text of a string; empty for every other value.
func (d *Decoder) String(v Value) string {
	if v.tag() != tagString {
		return ""
	}
	return string(d.strings.bytes(uint32(v.num())))
}
