"""PRMs behind HTTP: vLLM's and OpenRLHF's routes and our own, over one queue that packs what requests share."""
