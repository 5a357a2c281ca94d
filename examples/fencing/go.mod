module github.com/joblock/toolkit/examples/fencing

go 1.26.0

require (
	github.com/joblock/toolkit v0.1.0
	github.com/lib/pq v1.12.3
	github.com/ncruces/go-sqlite3 v0.37.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/ncruces/go-sqlite3-wasm/v6 v6.5.35401 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
