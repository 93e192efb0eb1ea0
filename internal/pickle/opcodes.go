package pickle

// Opcodes, from CPython's Lib/pickletools.py.
const (
	opMark           = '('
	opStop           = '.'
	opPop            = '0'
	opPopMark        = '1'
	opDup            = '2'
	opFloat          = 'F'
	opInt            = 'I'
	opBinInt         = 'J'
	opBinInt1        = 'K'
	opLong           = 'L'
	opBinInt2        = 'M'
	opNone           = 'N'
	opString         = 'S'
	opBinString      = 'T'
	opShortBinString = 'U'
	opUnicode        = 'V'
	opBinUnicode     = 'X'
	opBinBytes       = 'B'
	opShortBinBytes  = 'C'
	opAppend         = 'a'
	opDict           = 'd'
	opAppends        = 'e'
	opGet            = 'g'
	opBinGet         = 'h'
	opLongBinGet     = 'j'
	opList           = 'l'
	opPut            = 'p'
	opBinPut         = 'q'
	opLongBinPut     = 'r'
	opSetItem        = 's'
	opTuple          = 't'
	opSetItems       = 'u'
	opBinFloat       = 'G'
	opEmptyDict      = '}'
	opEmptyList      = ']'
	opEmptyTuple     = ')'

	// Protocol 2.
	opProto    = 0x80
	opTuple1   = 0x85
	opTuple2   = 0x86
	opTuple3   = 0x87
	opNewTrue  = 0x88
	opNewFalse = 0x89
	opLong1    = 0x8a
	opLong4    = 0x8b

	// Protocol 4.
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opMemoize         = 0x94
	opFrame           = 0x95

	// Protocol 5.
	opByteArray8     = 0x96
	opNextBuffer     = 0x97
	opReadonlyBuffer = 0x98
)

// refused names the opcodes that import, build or call something.
var refused = map[byte]string{
	'c': "GLOBAL", 0x93: "STACK_GLOBAL", 'R': "REDUCE", 'b': "BUILD", 'i': "INST", 'o': "OBJ",
	0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
	'P': "PERSID", 'Q': "BINPERSID",
}

// outOfBand names the opcodes of protocol 5 for data kept outside the pickle.
var outOfBand = map[byte]string{
	opByteArray8: "BYTEARRAY8", opNextBuffer: "NEXT_BUFFER", opReadonlyBuffer: "READONLY_BUFFER",
}

// argLen is the length of the fixed-size argument that follows an opcode.
var argLen = [256]uint8{
	opBinInt: 4, opBinInt1: 1, opBinInt2: 2, opBinString: 4, opShortBinString: 1,
	opBinUnicode: 4, opBinBytes: 4, opShortBinBytes: 1, opBinGet: 1, opLongBinGet: 4,
	opBinPut: 1, opLongBinPut: 4, opBinFloat: 8, opProto: 1, opLong1: 1, opLong4: 4,
	opShortBinUnicode: 1, opBinUnicode8: 8, opBinBytes8: 8, opFrame: 8,
}
