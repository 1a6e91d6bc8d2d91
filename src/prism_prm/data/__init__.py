"""Files of labelled solutions, problems and pools; trees and pairs made from them."""
